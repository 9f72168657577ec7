"""What the sources must not do, found in their syntax trees; and defaults that keep a host closed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from eyrie.core.errors import SpecError
from eyrie.core.spec import load
from eyrie.dataset.settings import Settings as DatasetSettings
from eyrie.serve.settings import ServerSettings

PROJECT = Path(__file__).resolve().parents[3]
SOURCES = sorted(
    path
    for folder in ("src", "library", "module_utils", "callback_plugins", "filter_plugins", "doc_fragments")
    for path in (PROJECT / folder).rglob("*.py")
    if not path.is_symlink()
)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name, call) of every call in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> str:
    return next((ast.unparse(item.value) for item in call.keywords if item.arg == name), "")


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    return {str(path.relative_to(PROJECT)): ast.parse(path.read_text("utf-8")) for path in SOURCES}


def test_there_is_something_to_look_at(trees: dict[str, ast.AST]) -> None:
    assert len(trees) > 100


def test_no_pickle_is_executed(trees: dict[str, ast.AST]) -> None:
    """Files of others are safetensors, JSON, Arrow or numpy without objects; torch.load only with weights_only.

    An unpickler of our own is one whose find_class does nothing but refuse: plain numbers and containers only.
    """
    found = []
    for name, tree in trees.items():
        refusing = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and any(_refuses(item) for item in node.body)
        }
        for function, call in calls(tree):
            reader = function.partition(".")[0] in ("pickle", "cPickle", "dill", "shelve", "marshal", "joblib")
            if reader and function.rpartition(".")[2] in ("load", "loads", "open", "Unpickler"):
                found.append(f"{name}:{call.lineno}: {function}")
            if function.endswith("torch.load") and keyword(call, "weights_only") != "True":
                found.append(f"{name}:{call.lineno}: {function} without weights_only=True")
            if function in ("np.load", "numpy.load") and keyword(call, "allow_pickle") == "True":
                found.append(f"{name}:{call.lineno}: {function} with allow_pickle")
        for node in ast.walk(tree):
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if "pickle.Unpickler" in bases and node.name not in refusing:  # type: ignore[attr-defined]
                found.append(f"{name}: {bases} that finds classes")
    assert found == []


def _refuses(item: ast.stmt) -> bool:
    named = isinstance(item, ast.FunctionDef) and item.name == "find_class"
    return named and all(isinstance(part, ast.Raise) for part in item.body)  # type: ignore[attr-defined]


def test_no_text_is_executed(trees: dict[str, ast.AST]) -> None:
    """No shell, no eval, no YAML that makes objects, no temporary name that others can guess."""
    forbidden = {"eval", "exec", "os.system", "os.popen", "tempfile.mktemp", "subprocess.getoutput", "yaml.unsafe_load"}
    found = []
    for name, tree in trees.items():
        for function, call in calls(tree):
            if function in forbidden or keyword(call, "shell") == "True":
                found.append(f"{name}:{call.lineno}: {function}")
            if keyword(call, "use_unsafe_shell") == "True":
                found.append(f"{name}:{call.lineno}: {function} with use_unsafe_shell")
            if (
                function == "yaml.load"
                and "safe" not in ast.unparse(call).lower()
                and "loader" not in ast.unparse(call)
            ):
                found.append(f"{name}:{call.lineno}: {function} without a safe loader")
            if function.endswith("extractall") and "filter" not in ast.unparse(call):
                found.append(f"{name}:{call.lineno}: {function} without a filter")
    assert found == []


def test_templates_of_text_are_sandboxed(trees: dict[str, ast.AST]) -> None:
    """A chat template is code of others: jinja2 only in its sandbox, or for our own page with escaping on."""
    found = []
    for name, tree in trees.items():
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jinja2")
            for alias in node.names
        }
        jinja = {"jinja2.Environment", "jinja2.Template"} | (imported & {"Environment", "Template"})
        for function, call in calls(tree):
            if function in jinja and keyword(call, "autoescape") in ("", "False"):
                found.append(f"{name}:{call.lineno}: {ast.unparse(call)[:80]}")
    assert found == []


def test_no_task_shows_or_takes_a_secret_in_argv() -> None:
    """Tasks never put a password, token or key on a command line."""
    found = []
    for path in [*PROJECT.glob("roles/*/tasks/*.yml"), *PROJECT.glob("playbooks/*.yml")]:
        for line in path.read_text().splitlines():
            if re.search(r"(?i)(argv|cmd|shell):.*(token|password|secret|api_key)\b(?!_file)", line):
                found.append(f"{path.relative_to(PROJECT)}: {line.strip()}")
    assert found == []


def test_servers_listen_on_loopback_by_default() -> None:
    assert ServerSettings().host == "127.0.0.1"
    for path in PROJECT.glob("inventory/group_vars/*/*.yml"):
        values = yaml.safe_load(path.read_text()) or {}
        for name, value in values.items():
            if name.startswith("eyrie_") and name.endswith("_host") and isinstance(value, str):
                assert value in ("127.0.0.1", "localhost", "::1") or "{{" in value, f"{path}: {name} = {value}"


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "MY_PASSWORD", "DB_SECRET"])
def test_secret_in_a_server_s_environment_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="a secret must not stand"):
        load(ServerSettings, {"environment": {name: "x"}}, "server")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b", "..", "a\\b", "a\nb", "x;rm -rf", ""])
def test_name_of_a_source_cannot_leave_its_folder(name: str) -> None:
    source = {"kind": "local", "adapter": "prompt", "path": "/x"}
    with pytest.raises(SpecError):
        load(DatasetSettings, {"registry": {name: source}, "sources": [name]}, "dataset")


def test_no_world_writable_mode_is_set(trees: dict[str, ast.AST]) -> None:
    found = []
    for name, tree in trees.items():
        for function, call in calls(tree):
            if function.rpartition(".")[2] in ("chmod", "fchmod", "mkdir", "makedirs", "open"):
                numbers = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
                modes = [value for value in numbers if isinstance(value, int) and not isinstance(value, bool)]
                found += [
                    f"{name}:{call.lineno}: {oct(mode)}"
                    for mode in modes
                    if mode <= 0o7777 and mode & 0o002 and mode > 0o100
                ]
    assert found == []
    for path in [*PROJECT.glob("roles/*/tasks/*.yml"), *PROJECT.glob("playbooks/*.yml")]:
        for match in re.finditer(r"mode: [\"']?(0?[0-7]{3,4})", path.read_text()):
            assert not int(match[1], 8) & 0o002, f"{path}: {match[0]}"
