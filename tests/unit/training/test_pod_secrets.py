"""Secrets in a pod's words: found again from the masked words alone, and never part of these."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.training.log.trigger_log import MASK, masked_words, secrets_of

WORDS = st.text(alphabet="abc =:/\n", max_size=8)


def pod(**container: Any) -> dict[str, Any]:
    return {"spec": {"initContainers": [{"name": "data"}], "containers": [{"name": "base", **container}]}}


def redact(text: str) -> str:
    return text.replace("S3CRET", MASK).replace("0THER", MASK)


@pytest.mark.parametrize(
    ("container", "masked", "secrets"),
    [
        ({"env": [{"name": "TOKEN", "value": "S3CRET"}]}, {"base/env/TOKEN": "***"}, {"S3CRET"}),
        ({"env": [{"name": "NAME", "value": "train"}]}, {}, set()),
        ({"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "S3CRET"}}}]}, {}, set()),
        ({"command": ["train", "--token=S3CRET"]}, {"base/command/1": "--token=***"}, {"S3CRET"}),
        (
            {"args": ["curl https://me:S3CRET@host/0THER -o x"]},
            {"base/args/0": "curl https://me:***@host/*** -o x"},
            {"S3CRET", "0THER"},
        ),
        ({}, {}, set()),
    ],
)
def test_found_where_they_stand(container: dict[str, Any], masked: dict[str, str], secrets: set[str]) -> None:
    assert masked_words(pod(**container), redact) == masked
    assert secrets_of(pod(**container), masked) == secrets


def test_words_that_an_admission_webhook_has_changed_are_passed_over() -> None:
    assert secrets_of(pod(args=["another --token=S3CRET"]), {"base/args/0": "train --token=***"}) == set()
    assert secrets_of({}, {"base/args/0": "***"}) == set()


@given(before=WORDS, after=WORDS)
def test_the_secret_is_found_between_any_words_and_never_given_away(before: str, after: str) -> None:
    one = pod(args=[f"{before}S3CRET{after}"])
    masked = masked_words(one, redact)
    assert "S3CRET" not in str(masked)
    assert secrets_of(one, masked) == {"S3CRET"}
