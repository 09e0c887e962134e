"""What the sandbox asks IAM about each call, held to AWS's Service Authorization Reference."""

from __future__ import annotations

import pytest

from gpu_sandbox.aws import authorization, launch_authorization
from tests.unit import service_authorization

OF_TYPE = {
    "autoScalingGroup": {f"autoscaling:{name}" for name in authorization.ON_GROUPS},
    "cluster": {f"eks:{name}" for name in authorization.ON_CLUSTERS},
    "nodegroup": {f"eks:{name}" for name in authorization.ON_NODE_GROUPS},
}


@pytest.mark.parametrize("service", authorization.WITHOUT_RESOURCE)
def test_some_actions_have_everything_as_their_resource(service: str) -> None:
    for name in authorization.WITHOUT_RESOURCE[service]:
        assert service_authorization.resource_types(f"{service}:{name}") == {}, name


@pytest.mark.parametrize("kind", OF_TYPE)
def test_the_others_have_a_resource_of_one_type(kind: str) -> None:
    for action in OF_TYPE[kind]:
        types = service_authorization.resource_types(action)
        assert types.get(kind), action
        assert [name for name, required in types.items() if required] == [kind], action


def test_run_instances_is_asked_about_each_resource_that_it_needs() -> None:
    types = service_authorization.resource_types("ec2:RunInstances")
    assert {name for name, required in types.items() if required} <= set(launch_authorization.LAUNCHED) <= types.keys()


@pytest.mark.parametrize("action", authorization.KEYS)
def test_no_action_has_a_condition_key_that_the_service_does_not_know(action: str) -> None:
    assert authorization.KEYS[action] <= service_authorization.condition_keys(action)
