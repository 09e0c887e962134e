"""The Reconciler in the model's world, in virtual time: machines come, are shared, are kept, and go."""

from __future__ import annotations

from datetime import timedelta

from airflow_gpu_provider.cluster.api.nodes import cordon, list_nodes
from airflow_gpu_provider.scaling.decide.snapshot import usable_nodes
from tests.unit.scaling.model.night import Night, machines


def test_wanting_again_changes_nothing() -> None:
    night = Night()
    until = night.world.now + timedelta(hours=1)
    night.lead.want(night.key("one"), 1, until)
    night.until_usable(1)
    again = night.lead.want(night.key("one"), 1, until)
    assert again.decision.is_empty
    assert again.log_lines == ()


def test_a_group_without_quota_does_not_grow_for_who_saw_that_whoever_reconciles() -> None:
    night = Night()
    until = night.world.now + timedelta(hours=1)
    (name,) = night.world.cloud.asgs
    night.lead.want(night.key("one"), 1, until, over_quota=[name])
    assert night.reconciler("another").reconcile().decision.grow == {}
    assert machines(night.lead.reconcile()) == []
    night.lead.want(night.key("one"), 1, until, over_quota=[])  # the next try has asked again
    night.until_usable(1)


def test_what_two_runs_want_adds_up_and_each_goes_by_itself() -> None:
    night = Night()
    night.want("one")
    night.want("two")
    night.until_usable(2)
    assert len(night.lead.delete_demand_and_reconcile(night.key("one")).decision.release) == 1
    night.until_usable(1)
    night.lead.delete_demand_and_reconcile(night.key("two"))
    night.until_gone()


def test_an_installation_s_run_ends_without_harm_to_another_s_with_the_same_ids() -> None:
    night = Night()
    ours, theirs = night.key("nightly", "team-a"), night.key("nightly", "team-b")
    other = night.reconciler("team-b's")
    night.want_with(night.lead, ours)
    night.want_with(other, theirs)
    first, second = usable_nodes(night.until_usable(2).snapshot)
    of_ours = night.pod(on=first.name, run=ours)
    of_theirs = night.pod(on=second.name, run=theirs)

    assert night.lead.delete_pods(night.lead.run_pods(ours)) == [f"default/{of_ours}"]
    night.lead.delete_demand_and_reconcile(ours)
    left = night.until(lambda outcome: len(machines(outcome)) == 1).snapshot
    assert [(pod.name, pod.node) for pod in left.pods if not pod.daemon] == [(of_theirs, second.name)]
    night.world.remove_pods()
    other.delete_demand_and_reconcile(theirs)
    night.until_gone()


def test_a_stranger_s_pod_keeps_its_machine_until_it_ends() -> None:
    night = Night(max_nodes=1)
    night.want("one")
    (node,) = usable_nodes(night.until_usable(1).snapshot)
    night.pod(on=node.name)
    for _ in range(2):
        assert night.lead.delete_demand_and_reconcile(night.key("one")).decision.release == ()
    night.world.remove_pods()
    night.until_gone()


def test_a_pod_that_waits_for_the_pool_gets_a_machine_without_a_lease() -> None:
    night = Night(max_nodes=1)
    night.pod()
    outcome = night.until_usable(1)
    assert outcome.snapshot.groups[0].switch_at is not None
    night.world.remove_pods()
    night.until_gone()


def test_size_that_never_came_is_taken_back() -> None:
    night = Night()
    (asg,) = night.world.cloud.asgs.values()
    asg.out_of_stock = True
    night.want("one")
    assert asg.desired == 1
    night.until(lambda outcome: outcome.snapshot.groups[0].launch_failure is not None)
    night.lead.delete_demand_and_reconcile(night.key("one"))
    night.until(lambda outcome: outcome.snapshot.groups[0].desired == 0)


def test_a_group_that_was_just_told_to_upgrade_grows_when_that_is_over() -> None:
    """The cloud may still show it as it was, to another process too: a machine that came now would be replaced."""
    night = Night()
    (name,) = night.world.cloud.asgs
    night.lead.platform.upgrade = lambda report, check: (check(), (name,))[1]  # type: ignore[method-assign]
    night.lead.upgrade(print)
    wanted = night.want_with(night.reconciler("another"), night.key("one"))
    assert (wanted.decision.grow, wanted.log_lines) == ({}, (f"{name} grows to 1 when it has been updated",))
    night.until_usable(1)


def test_a_dead_holder_s_cordon_is_finished_or_undone() -> None:
    night = Night(max_nodes=1)
    night.want("one")
    (node,) = usable_nodes(night.until_usable(1).snapshot)
    cordon(night.api, node, by="somebody who died")
    night.lead.reconcile()
    assert not list_nodes(night.api, night.pool.node_selector)[0].cordoned

    cordon(night.api, node, by="somebody who died")
    night.lead.delete_demand_and_reconcile(night.key("one"))
    night.until_gone()


def test_somebody_s_own_cordon_is_left_alone() -> None:
    night = Night(max_nodes=1)
    night.want("one")
    (node,) = usable_nodes(night.until_usable(1).snapshot)
    night.world.cordon_by_people(night.world.nodes[node.name])
    outcome = night.lead.delete_demand_and_reconcile(night.key("one"))
    assert outcome.decision.release == ()
    assert any("it was cordoned externally" in line for line in outcome.log_lines)
    night.world.uncordon_by_people()
    night.until_gone()


def test_after_its_time_a_run_s_machine_goes_without_anybody_giving_it_up() -> None:
    night = Night(max_nodes=1)
    night.want("one")
    night.until_usable(1)
    night.world.actors.advance_to(night.world.actors.time + 3600)
    night.until_gone()


def test_nothing_is_written_when_there_is_nothing_to_do() -> None:
    night = Night()
    night.want("one")
    night.until_usable(1)
    before = night.world.leases["lock-train"]["metadata"]["resourceVersion"]
    assert night.lead.reconcile().decision.is_empty
    assert night.world.leases["lock-train"]["metadata"]["resourceVersion"] == before
