"""Dockerfile and compose.yaml, as far as they can be held without an engine: what they name is there, and commands in
them are ours."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from chanas.commands.main import app
from chanas.service.serve import DEFAULT_PORT

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
FINAL = re.sub(r"\\\n\s*", "", DOCKERFILE.rpartition("\nFROM ")[2])


def of(instruction: str) -> str:
    found = re.search(rf"^{instruction} (.*)$", FINAL, re.MULTILINE)
    assert found is not None, instruction
    return found[1]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options of a command of ours; an error where it takes no such arguments."""
    command, context = typer.main.get_command(app), None
    while True:
        context = command.make_context(command.name or "chanas", list(arguments), parent=context)
        rest = [*context._protected_args, *context.args]
        if not (rest and hasattr(command, "resolve_command")):
            return dict(context.params)
        _, sub, arguments = command.resolve_command(context, rest)
        assert sub is not None, rest
        command = sub


COMMANDS = {
    "image": json.loads(of("CMD")),
    **{
        name: service["command"]
        for name, service in SERVICES.items()
        if "entrypoint" not in service and "command" in service
    },
    **{
        name: service["healthcheck"]["test"][2:]
        for name, service in SERVICES.items()
        if "test" in service.get("healthcheck", {})
    },
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_ours_and_take_these_arguments(name: str) -> None:
    assert json.loads(of("ENTRYPOINT")) == ["chanas"]
    assert parsed(COMMANDS[name])


def test_the_image_serves_what_it_exposes_as_nobody_special_and_keeps_it_in_its_volume() -> None:
    options = parsed(COMMANDS["image"])
    assert (options["host"], options["port"]) == ("0.0.0.0", DEFAULT_PORT)
    assert str(options["data"]) == of("VOLUME")
    assert of("EXPOSE") == str(DEFAULT_PORT)
    assert f"http://127.0.0.1:{DEFAULT_PORT}/v1/health" in of("HEALTHCHECK")
    assert int(of("USER")) > 0


def test_the_image_installs_the_wheel_with_extras_that_there_are() -> None:
    extras = re.search(r"chanas\[([\w,]+)\] @ file:", FINAL)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*extras[1].split(",")} <= project["optional-dependencies"].keys()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored


def test_ports_are_published_on_this_machine_alone_and_names_are_declared() -> None:
    for service in SERVICES.values():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))
        assert all(volume.partition(":")[0] in COMPOSE["volumes"] for volume in service.get("volumes", []))
        assert {*service.get("networks", [])} <= COMPOSE["networks"].keys()
        assert {*service.get("depends_on", [])} <= SERVICES.keys()
    assert [name for name, service in SERVICES.items() if "rpc" in service.get("networks", [])] == ["tracker", "device"]
    assert COMPOSE["networks"]["rpc"]["internal"] is True
