"""Tunings through the service: a model and a search for real, and what hostile uploads come to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import uvicorn
from networks import save_onnx
from tables import save_accuracies, save_space

from chanas.core.latency import LatencyLUT
from chanas.errors import ConfigError, ModelError, ServiceError
from chanas.service.api.app import create_app
from chanas.service.client import ServiceClient
from chanas.service.folder import DataFolder
from chanas.service.process import check_whole
from chanas.service.requests import digest_of
from chanas.service.serve import Settings, check_packages, open_service
from chanas.workflows.models.chain import Model

from ..compiler.workbench import CHOICES, NUM_CLASSES
from .recording import open_recording, records_of


@contextlib.contextmanager
def served(settings: Settings, **more: Any) -> Iterator[ServiceClient]:
    """A service in this process, and a client of it."""
    with open_service(settings, **more) as service:
        server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            port = server.servers[0].sockets[0].getsockname()[1]
            yield ServiceClient(f"http://127.0.0.1:{port}")
        finally:
            server.should_exit = True
            thread.join()


def done(client: ServiceClient, request: dict[str, Any]) -> dict[str, Any]:
    """A job, watched to its end."""
    job = client.submit(request, digest_of(request))["id"]
    assert [data["state"] for kind, data in client.watch(job) if kind == "state"][-1] == "complete", client.show(job)
    return client.show(job)


@pytest.mark.slow
def test_a_network_and_a_search_for_real(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "data")
    data = DataFolder(settings.data)
    with served(settings) as client:
        model = client.upload(save_onnx(tmp_path / "net.onnx"))
        request = {"kind": "model", "model": model, "trials": 3, "demand": {"latency_s": 1e-9}}
        tuned = done(client, request)
        assert (tuned["result"]["met"], tuned["result"]["num_new_trials"] > 0) == (False, True)
        client.fetch(tuned["id"], tmp_path / "tuned")
        opened = Model.open(tmp_path / "tuned")
        assert opened.run(*opened.random_inputs())
        num_records = len(records_of(data.records))
        assert num_records == tuned["result"]["num_new_trials"]

        again = done(client, {**request, "demand": {"latency_s": 1.0}})
        assert (again["result"]["at_once"], again["result"]["bundle"]) == (True, tuned["result"]["bundle"])
        learned = done(client, {**request, "seed": 1})
        assert learned["result"]["num_new_trials"] == 0
        fresh = done(client, {**request, "transfer": False})
        assert fresh["result"]["num_new_trials"] > 0
        assert len(records_of(data.records)) >= num_records

        space = client.upload(save_space(CHOICES, tmp_path / "choices.yaml"))
        accuracies = client.upload(save_accuracies(CHOICES, tmp_path / "a.csv", NUM_CLASSES))
        about = {"space": space, "num_classes": NUM_CLASSES, "trials": 1, "calibrate": 0}
        table = done(client, {"kind": "table", **about})
        client.fetch(table["id"], tmp_path / "table")
        assert LatencyLUT.load(tmp_path / "table" / "cpu.json").rows
        found = done(client, {"kind": "search", **about, "accuracies": accuracies, "demand": {"latency_s": 1.0}})
        assert found["result"]["met"]
        assert 0.0 < found["result"]["accuracy"] < 1.0
        client.fetch(found["id"], tmp_path / "found")
        assert (tmp_path / "found" / "codesign.json").is_file()
        damaged = client.upload(save_accuracies(CHOICES, tmp_path / "b.csv", NUM_CLASSES, ["no row"]))
        bad = client.submit({"kind": "model", "model": damaged}, "bad")["id"]
        assert [told["state"] for kind, told in client.watch(bad) if kind == "state"][-1] == "failed"
        assert "ONNX" in client.show(bad)["error"]
        assert str(tmp_path) not in client.show(bad)["error"]


def external(path: Path, location: str) -> Path:
    """A network that says its weights lie elsewhere."""
    proto = onnx.load(save_onnx(path))
    tensor = proto.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../records.sqlite", "/etc/passwd", "weights.bin"])
def test_an_upload_may_not_name_other_files(tmp_path: Path, location: str) -> None:
    with pytest.raises(ModelError, match="another file"):
        check_whole(external(tmp_path / "net.onnx", location))


def test_a_tensor_inside_a_node_may_not_either(tmp_path: Path) -> None:
    proto = onnx.load(save_onnx(tmp_path / "net.onnx"))
    check_whole(tmp_path / "net.onnx")
    tensor = onnx.TensorProto(name="t", data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    proto.graph.node[0].attribute.add(name="value", t=tensor)
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="another file"):
        check_whole(tmp_path / "net.onnx")


def test_beyond_this_machine_a_service_without_tokens_does_not_start(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "data", host="0.0.0.0")
    with pytest.raises(ConfigError, match="token add"), open_service(settings, open_recording):
        pass


def test_missing_packages_are_named_with_the_extra_that_brings_them() -> None:
    with pytest.raises(ConfigError, match=r"fastapi, jinja2: pip install 'chanas\[service\]'"):
        check_packages(lambda name: name == "uvicorn" or None)


def test_two_services_do_not_work_in_one_folder(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "data")
    with (
        open_service(settings, open_recording),
        pytest.raises(Exception, match="another service works"),
        open_service(settings, open_recording),
    ):
        pass


def test_a_client_submits_watches_and_fetches(tmp_path: Path) -> None:
    request = {"kind": "model", "model": "torchvision:a"}
    with served(Settings(tmp_path / "data"), open_work=open_recording) as client:
        job = client.submit(request, "k")["id"]
        states = [told["state"] for kind, told in client.watch(job) if kind == "state"]
        assert states == ["queued", "running", "complete"]
        assert client.submit(request, "k")["id"] == job
        assert [found["id"] for found in client.jobs()] == [job]
        client.fetch(job, tmp_path / "out")
        assert (tmp_path / "out" / "tuned.json").is_file()
        with pytest.raises(ConfigError, match="is there already"):
            client.fetch(job, tmp_path / "out")
        with pytest.raises(ServiceError, match="Not Found"):
            client.show("../health")
    with pytest.raises(ServiceError, match="no service answers"):
        ServiceClient(client.url, tries=1).show(job)
