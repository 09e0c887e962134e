"""IAM's decisions, by the reference of its policy elements and of its evaluation logic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.aws.conditions import UnsupportedPolicy, arn_like, hold, like
from gpu_sandbox.aws.policies import Request, evaluate, mentioned, validate

GROUP = "arn:aws:autoscaling:us-west-2:1:autoScalingGroup:7:autoScalingGroupName/eks-train-1"


def statement(**changes: Any) -> dict[str, Any]:
    usual = {"Sid": "It", "Effect": "Allow", "Action": "autoscaling:SetDesiredCapacity", "Resource": "*"}
    return {**usual, **changes}


def decide(*statements: Mapping[str, Any], resource: str = GROUP, **context: Any) -> str:
    request = Request(action="autoscaling:SetDesiredCapacity", resource=resource, context=context)
    return evaluate([{"Version": "2012-10-17", "Statement": list(statements)}], request).outcome


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "allowed"),
        ({"Action": ["autoscaling:Set*"]}, "allowed"),
        ({"Action": "AutoScaling:setdesiredcapacity"}, "allowed"),
        ({"Action": "autoscaling:SetDesired"}, "implicitDeny"),
        ({"Action": "ec2:*"}, "implicitDeny"),
        ({"Effect": "Deny"}, "explicitDeny"),
        ({"Resource": [GROUP]}, "allowed"),
        ({"Resource": GROUP.replace("train", "*")}, "allowed"),
        ({"Resource": GROUP.replace("us-west-2", "*")}, "allowed"),
        ({"Resource": GROUP.replace("us-west-2", "us-east-1")}, "implicitDeny"),
        ({"Resource": "arn:aws:autoscaling:*"}, "implicitDeny"),
        ({"Resource": GROUP.replace("eks", "EKS")}, "implicitDeny"),
        ({"Condition": {"StringEquals": {"aws:ResourceTag/team": "ml"}}}, "implicitDeny"),
        ({"Condition": {"Null": {"aws:ResourceTag/team": "true"}}}, "allowed"),
    ],
)
def test_one_statement(changes: dict[str, Any], outcome: str) -> None:
    assert decide(statement(**changes)) == outcome


def test_not_action_and_not_resource() -> None:
    rest = {"Sid": "Rest", "Effect": "Allow", "NotAction": "iam:*", "NotResource": "arn:aws:eks:*:*:*"}
    assert decide(rest) == "allowed"
    assert decide({**rest, "NotAction": "autoscaling:*"}) == "implicitDeny"
    assert decide({**rest, "NotResource": GROUP}) == "implicitDeny"


def test_a_denial_wins_whatever_the_order() -> None:
    never = statement(Sid="Never", Effect="Deny", Condition={"StringLike": {"aws:ResourceTag/owner": "terra*"}})
    for statements in ([statement(), never], [never, statement()]):
        assert decide(*statements, **{"aws:resourcetag/owner": ["terraform"]}) == "explicitDeny"
        assert decide(*statements, **{"aws:resourcetag/owner": ["airflow"]}) == "allowed"


def test_what_allowed_it_is_known() -> None:
    both = [{"Statement": [statement(Sid="A")]}, {"Statement": statement(Sid="B")}]
    request = Request(action="autoscaling:SetDesiredCapacity", resource=GROUP)
    assert evaluate(both, request).statements == ("A", "B")
    assert mentioned(both, "autoscaling:SetDesiredCapacity")
    assert not mentioned(both, "eks:CreateNodegroup")


TAGS = {"aws:resourcetag/team": ["ml"], "aws:tagkeys": ["pool", "team"], "autoscaling:maxsize": ["3"]}


@pytest.mark.parametrize(
    ("operator", "key", "wanted", "holds"),
    [
        ("StringEquals", "aws:ResourceTag/team", "ml", True),
        ("StringEquals", "AWS:resourcetag/TEAM", "ml", True),
        ("StringEquals", "aws:ResourceTag/team", "ML", False),
        ("StringEquals", "aws:ResourceTag/team", ["hr", "ml"], True),
        ("StringEquals", "aws:ResourceTag/other", "ml", False),
        ("StringEqualsIfExists", "aws:ResourceTag/other", "ml", True),
        ("StringEqualsIfExists", "aws:ResourceTag/team", "hr", False),
        ("StringEqualsIgnoreCase", "aws:ResourceTag/team", "ML", True),
        ("StringNotEquals", "aws:ResourceTag/team", ["hr", "ml"], False),
        ("StringNotEquals", "aws:ResourceTag/team", ["hr", "it"], True),
        ("StringNotEquals", "aws:ResourceTag/other", "ml", True),
        ("StringLike", "aws:ResourceTag/team", "m?", True),
        ("StringLike", "aws:ResourceTag/team", "m[l]", False),
        ("StringNotLike", "aws:ResourceTag/team", "m*", False),
        ("Null", "aws:ResourceTag/team", "false", True),
        ("Null", "aws:ResourceTag/team", True, False),
        ("Null", "aws:ResourceTag/other", "true", True),
        ("Bool", "aws:ResourceTag/team", "ML", True),
        ("NumericLessThanEquals", "autoscaling:MaxSize", "3", True),
        ("NumericLessThan", "autoscaling:MaxSize", 3, False),
        ("NumericGreaterThan", "autoscaling:MinSize", "0", False),
        ("NumericNotEquals", "autoscaling:MaxSize", "4", True),
        ("ForAllValues:StringEquals", "aws:TagKeys", ["team", "pool", "more"], True),
        ("ForAllValues:StringEquals", "aws:TagKeys", ["team"], False),
        ("ForAllValues:StringEquals", "aws:NoKeys", ["team"], True),
        ("ForAnyValue:StringEquals", "aws:TagKeys", ["team"], True),
        ("ForAnyValue:StringLike", "aws:TagKeys", ["x*"], False),
        ("ForAnyValue:StringEquals", "aws:NoKeys", ["team"], False),
    ],
)
def test_conditions(operator: str, key: str, wanted: Any, holds: bool) -> None:
    assert hold({operator: {key: wanted}}, TAGS) is holds


def test_all_of_several_conditions_must_hold() -> None:
    two = {"StringEquals": {"aws:ResourceTag/team": "ml"}, "Null": {"autoscaling:MaxSize": "true"}}
    assert not hold(two, TAGS)
    assert hold(two, {"aws:resourcetag/team": ["ml"]})


@pytest.mark.parametrize(
    "changes",
    [
        {"Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}}},
        {"Condition": {"StringEqualsPerhaps": {"aws:ResourceTag/team": "ml"}}},
        {"Principal": "*"},
        {"Effect": "Perhaps"},
    ],
)
def test_what_is_not_evaluated_is_refused_when_the_policy_is_given(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedPolicy):
        validate({"Statement": [statement(**changes)]})


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ({"StringEquals": {"aws:TagKeys": "team"}}, "ForAllValues or ForAnyValue"),
        ({"StringEquals": {"aws:ResourceTag/team": "${aws:PrincipalTag/team}"}}, "policy variables"),
        ({"SomeValue:StringEquals": {"aws:TagKeys": "team"}}, "SomeValue"),
    ],
)
def test_what_would_be_guessed_is_an_error(condition: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedPolicy, match=says):
        hold(condition, TAGS)


def test_a_key_that_the_action_does_not_have_is_an_error() -> None:
    document = {"Statement": statement(Condition={"Null": {"autoscaling:MinSize": "true"}})}
    asked = Request(action="autoscaling:SetDesiredCapacity", resource=GROUP, known=frozenset({"aws:resourcetag/"}))
    with pytest.raises(UnsupportedPolicy, match="SetDesiredCapacity has no condition key autoscaling:MinSize"):
        evaluate([document], asked)


@given(st.text(alphabet="ab:/*", max_size=8))
def test_a_star_is_everything_and_a_text_is_like_itself(text: str) -> None:
    assert like(text, "*")
    assert like(text, text.replace("*", "?"))


@given(st.lists(st.text(alphabet="ab/", max_size=3), min_size=6, max_size=6), st.integers(0, 5))
def test_no_wildcard_reaches_beyond_its_part(parts: list[str], at: int) -> None:
    arn = ":".join(parts)
    assert arn_like(arn, ":".join(["*"] * 6))
    assert arn_like(arn, ":".join(part if i != at else "*" for i, part in enumerate(parts)))
    assert not arn_like(arn, ":".join(["*"] * 5))
