"""What Airflow is told about the package: in its own schema, and nothing of the package left out."""

from __future__ import annotations

import importlib.metadata
import json
import pkgutil
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from airflow.providers.common.compat.sdk import AirflowPlugin
from airflow.sdk import BaseNotifier, BaseOperator, BaseOperatorLink, BaseSensorOperator
from airflow.triggers.base import BaseTrigger

import airflow_gpu_provider
from airflow_gpu_provider.get_provider_info import get_provider_info

REPOSITORY = Path(__file__).parents[2]
SCHEMA = json.loads((resources.files("airflow") / "provider_info.schema.json").read_text())
INFO = get_provider_info()


@cache
def classes_of(base: type[Any]) -> list[type[Any]]:
    """Return the package's own classes with this base that have no underscore, wherever they are."""
    modules = [each.name for each in pkgutil.walk_packages(airflow_gpu_provider.__path__, "airflow_gpu_provider.")]
    found = {
        value
        for name in modules
        for value in vars(import_module(name)).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == name
    }
    return sorted((cls for cls in found if not cls.__name__.startswith("_")), key=lambda cls: cls.__name__)


def path_of(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def listed(kind: str) -> list[str]:
    return [module for entry in INFO[kind] for module in entry["python-modules"]]


def test_it_is_valid_and_has_no_key_that_airflow_does_not_know() -> None:
    jsonschema.validate(INFO, SCHEMA)
    assert set(INFO) <= set(SCHEMA["properties"])


def test_each_module_with_a_public_operator_or_sensor_is_listed() -> None:
    public = [getattr(airflow_gpu_provider, name) for name in airflow_gpu_provider.__all__]
    operators = [cls for cls in public if isinstance(cls, type) and issubclass(cls, BaseOperator)]
    sensors = {cls.__module__ for cls in operators if issubclass(cls, BaseSensorOperator)}
    assert sorted(listed("sensors")) == sorted(sensors)
    assert sorted(listed("operators")) == sorted({cls.__module__ for cls in operators} - sensors)


def test_each_module_with_a_trigger_is_listed() -> None:
    assert sorted(listed("triggers")) == sorted({cls.__module__ for cls in classes_of(BaseTrigger)})


@pytest.mark.parametrize(("kind", "base"), [("extra-links", BaseOperatorLink), ("notifications", BaseNotifier)])
def test_each_link_and_notifier_is_listed(kind: str, base: type[Any]) -> None:
    assert sorted(INFO.get(kind, [])) == [path_of(cls) for cls in classes_of(base)]


def test_what_is_named_by_its_path_is_there() -> None:
    for path in (*INFO["extra-links"], *INFO["cli"], *(each["class-name"] for each in INFO["task-decorators"])):
        module, name = path.rsplit(".", 1)
        assert callable(getattr(import_module(module), name)), path


def test_the_plugin_is_registered_once_by_its_entry_point() -> None:
    """Airflow reads `plugins` of a provider only where discovery is not lazy, and refuses a plugin that comes twice."""
    points = importlib.metadata.distribution("airflow-gpu-provider").entry_points.select(group="airflow.plugins")
    assert [point.load() for point in points] == classes_of(AirflowPlugin)
    assert "plugins" not in INFO


def test_each_guide_is_there() -> None:
    guides = {guide for entry in INFO["integrations"] for guide in entry["how-to-guide"]}
    assert guides == {f"/docs/howto/{page.name}" for page in (REPOSITORY / "docs/howto").glob("*.md")}
