"""Which files of a folder travel into a pod, and which folders and links are refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_gpu_provider.errors import CodeUnusable
from airflow_gpu_provider.training.code.code_files import (
    MOST_BYTES,
    MOST_FILES,
    Code,
    code_folder,
    read_code,
)

_BEGIN, _CONTENT = f"-----BEGIN {'RSA PRIVATE'} KEY-----\n", f"{'MIIEpAIBAAKCAQEA' * 4}\n-----END"
KEY = _BEGIN + _CONTENT
ENCRYPTED = f"{_BEGIN}Proc-Type: 4,ENCRYPTED\nDEK-Info: DES-EDE3-CBC,{'0A' * 8}\n\n{_CONTENT}"
USER = '{"client_id": "c", "refresh_token": "1//0abcdefgh", "type": "authorized_user"}'


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def paths(code: Code) -> list[str]:
    return [each.path for each in code.files]


def test_a_bundle_travels_without_secrets_and_what_it_has_of_them_is_named(tmp_path: Path) -> None:
    secret = {".env": "A=1", "prod.env": "", ".git/config": "", "a/id_rsa": "", "keys/gcp.json": f'{{"k": "{KEY}"}}'}
    made = {"trainer/__pycache__/train.pyc": ""}
    kept = {
        "trainer/train.py": "if '-----BEGIN PRIVATE KEY-----' in text: ...",
        "ca.pem": "-----BEGIN CERTIFICATE-----",
    }
    write(tmp_path, {**secret, **made, **kept})
    (tmp_path / "ca.pem").chmod(0o755)
    code = read_code(tmp_path, tmp_path)
    assert paths(code) == sorted(kept)
    assert [each.is_executable for each in code.files] == [True, False]
    assert {path for path, why in code.left_out if why == "secret"} == {
        *(".env", ".git/", "a/id_rsa", "keys/gcp.json", "prod.env"),
    }


@pytest.mark.parametrize("data", [KEY.encode("utf-16"), ENCRYPTED.encode(), USER.encode()])
def test_a_secret_is_known_by_its_content(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, {"train.py": 'text = \'"type": "authorized_user"\''})
    (tmp_path / "data.txt").write_bytes(data)
    code = read_code(tmp_path, tmp_path)
    assert (paths(code), code.left_out) == (["train.py"], (("data.txt", "secret"),))


def test_a_secret_is_known_by_its_name_in_any_case(tmp_path: Path) -> None:
    names = {".npmrc", ".cache/hf", ".kaggle/a", "Credentials.json", "ID_RSA", "infra/x.tfstate.backup", "prod.ENV"}
    write(tmp_path, dict.fromkeys((*names, "cache/kept.py"), ""))
    code = read_code(tmp_path, tmp_path)
    assert paths(code) == ["cache/kept.py"]
    assert len(code.left_out) == len(names)


@pytest.mark.parametrize(
    ("ignored", "travels"),
    [
        ({".airflowignore": "trainer/  # no DAGs\n*.csv"}, ["dag.py"]),
        ({".airflowignore": "trainer/", ".gpuignore": "!trainer/\n*.csv"}, ["dag.py", "trainer/train.py"]),
        ({".gpuignore": "/data.csv", "trainer/.gpuignore": "data.csv"}, ["dag.py", "trainer/train.py"]),
        (
            {".gpuignore": "*.csv", "trainer/.gpuignore": "!data.csv"},
            ["dag.py", "trainer/data.csv", "trainer/train.py"],
        ),
        ({".gpuignore": "!.env"}, ["dag.py", "data.csv", "trainer/data.csv", "trainer/train.py"]),
    ],
)
def test_ignore_files_name_what_stays(tmp_path: Path, ignored: dict[str, str], travels: list[str]) -> None:
    files = dict.fromkeys(("dag.py", "data.csv", "trainer/train.py", "trainer/data.csv", ".env"), "")
    assert paths(read_code(write(tmp_path, {**files, **ignored}), tmp_path)) == travels


def test_airflowignore_has_the_syntax_that_airflow_reads_it_with(tmp_path: Path) -> None:
    write(tmp_path, {"dag.py": "", "trainer/train.py": "", ".airflowignore": "rain.r"})
    assert paths(read_code(tmp_path, tmp_path, "regexp")) == ["dag.py"]
    assert paths(read_code(tmp_path, tmp_path)) == ["dag.py", "trainer/train.py"]


def test_a_link_within_the_bundle_brings_what_it_leads_to(tmp_path: Path) -> None:
    write(tmp_path, {"common/loss.py": "1", "trainer/train.py": "2", ".env": "A=1"})
    (tmp_path / "trainer" / "common").symlink_to(tmp_path / "common")
    (tmp_path / "trainer" / "settings").symlink_to(tmp_path / ".env")
    code = read_code(code_folder("trainer/", tmp_path / "dag.py", tmp_path), tmp_path)
    assert paths(code) == ["common/loss.py", "train.py"]
    assert code.left_out == (("settings", "secret"),)


@pytest.mark.parametrize(
    ("target", "words"), [("..", "leads out of the DAG file's bundle"), (".", "contains itself"), ("no", "nowhere")]
)
def test_a_link_that_leaves_the_bundle_is_refused_unless_it_stays(tmp_path: Path, target: str, words: str) -> None:
    bundle = write(tmp_path / "bundle", {"dag.py": ""})
    (bundle / "link").symlink_to(bundle / target)
    with pytest.raises(CodeUnusable, match=words):
        read_code(bundle, bundle)
    write(bundle, {".gpuignore": "link"})
    assert paths(read_code(bundle, bundle)) == ["dag.py"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("/etc", "absolute"),
        ("", "code=''"),
        (True, "code=True"),
        ("{{ params.code }}", "code is not templated"),
        ("trained/", "does not exist"),
        ("dag.py", "is a file"),
        ("../..", "leads out of the DAG file's bundle"),
        ("out", "leads out of the DAG file's bundle"),
    ],
)
def test_a_folder_that_is_none_of_the_bundle_is_refused(tmp_path: Path, code: str, words: str) -> None:
    bundle = write(tmp_path / "bundle", {"dags/dag.py": ""})
    (bundle / "dags" / "out").symlink_to(tmp_path)
    with pytest.raises(CodeUnusable, match=words):
        code_folder(code, bundle / "dags" / "dag.py", bundle)


def test_a_folder_beside_the_dag_files_is_in_the_bundle(tmp_path: Path) -> None:
    write(tmp_path, {"dags/dag.py": "", "trainer/train.py": ""})
    assert code_folder("../trainer", tmp_path / "dags" / "dag.py", tmp_path) == (tmp_path / "trainer").resolve()
    assert code_folder("bundle", tmp_path / "dags" / "dag.py", tmp_path) == tmp_path.resolve()


def test_too_much_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    sizes = {f"data/{number:02}.csv": number * MOST_BYTES // 20 for number in range(12)}
    write(tmp_path, {**{name: "x" * size for name, size in sizes.items()}, "train.py": ""})
    with pytest.raises(
        CodeUnusable, match=r"13 files.*700 KiB.*largest: data/11.csv \(385 KiB\), .*02.csv \(70 KiB\)\. "
    ):
        read_code(tmp_path, tmp_path)
    write(tmp_path, {".gpuignore": "data/"})
    assert paths(read_code(tmp_path, tmp_path)) == ["train.py"]


def test_too_many_are_refused_as_are_none(tmp_path: Path) -> None:
    write(tmp_path, {f"{number}.py": "" for number in range(MOST_FILES + 1)})
    with pytest.raises(CodeUnusable, match="1001 files"):
        read_code(tmp_path, tmp_path)
    write(tmp_path, {".gpuignore": "*"})
    with pytest.raises(
        CodeUnusable, match=r"All files .*: 0\.py \(\.gpuignore\), 1\.py .* and 991 more\..*`!trainer/`"
    ):
        read_code(tmp_path, tmp_path)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CodeUnusable, match="empty of the code has no files"):
        read_code(tmp_path / "empty", tmp_path)


def test_an_ignore_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a/train.py": ""})
    (tmp_path / "a" / ".gpuignore").write_bytes(b"\xff\xfe*")
    with pytest.raises(CodeUnusable, match=r"a/\.gpuignore of the code is not UTF-8"):
        read_code(tmp_path, tmp_path)


def test_a_fifo_is_named_among_what_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": ""})
    os.mkfifo(tmp_path / "pipe")
    assert read_code(tmp_path, tmp_path).left_out == (("pipe", "neither file nor folder"),)


@pytest.mark.parametrize(("name", "words"), [(b"\xff.py", "UTF-8"), (b"..py", "two dots")])
def test_names_that_no_volume_can_have_are_refused(tmp_path: Path, name: bytes, words: str) -> None:
    Path(str(tmp_path), name.decode(errors="surrogateescape")).write_text("")
    with pytest.raises(CodeUnusable, match=words):
        read_code(tmp_path, tmp_path)
