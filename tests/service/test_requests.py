"""chanas/service/requests.py: a request's digests tell what its result depends on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chanas.errors import ServiceError
from chanas.service.requests import JobRequest, digest_of, parse_request

MODEL = {"kind": "model", "model": "torchvision:squeezenet1_1"}


def request_of(**fields: Any) -> JobRequest:
    return parse_request(json.dumps(MODEL | fields).encode())


def test_the_digest_of_a_request_that_shares_nothing_is_as_before_there_were_shares() -> None:
    plain = request_of()
    old = plain.model_dump(mode="json", exclude={"tune_share"})
    assert plain.digest() == digest_of(old) == request_of(tune_share=1.0).digest()


@pytest.mark.parametrize(
    ("fields", "same"), [({"tune_share": 0.5}, False), ({"transfer": False}, True), ({"seed": 1}, False)]
)
def test_a_result_depends_on_effort_and_not_on_how_it_is_begun(fields: dict[str, Any], same: bool) -> None:
    assert (request_of(**fields).effort() == request_of().effort()) is same
    assert request_of(**fields).digest() != request_of().digest()


@pytest.mark.parametrize("share", [0, -1, 1.01, "all"])
def test_a_share_is_above_zero_and_at_most_one(share: Any) -> None:
    with pytest.raises(ServiceError, match="tune_share"):
        request_of(tune_share=share)


@pytest.mark.parametrize("model", ["torchvision:resnet18", "timm:resnet26d", "timm:resnet26d.bt_in1k", "ab" * 32])
def test_a_network_is_an_upload_or_one_of_a_library(model: str) -> None:
    assert request_of(model=model).model == model


@pytest.mark.parametrize("model", ["timm:", "timm:../a", "timm:hf_hub:a", "timm", "keras:resnet18"])
def test_another_network_is_refused_with_what_there_is(model: str) -> None:
    with pytest.raises(ServiceError, match="the hash of an upload, torchvision:NAME or timm:NAME"):
        request_of(model=model)
