"""The OpenAPI description, and requests drawn from it: nothing that can be sent makes the service fail."""

from collections import Counter
from copy import deepcopy

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.control.api.serving import TOKEN, Serving

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def described(service: Serving) -> schemathesis.BaseSchema:
    with service.client() as client:
        job = client.post("/api/v1/jobs", json=service.job("known")).json()["job"]["id"]
    found = deepcopy(service.app.openapi())  # which keeps what it has made
    for path, methods in found["paths"].items():
        # Names that exist are drawn as well, or most requests would end at "not found".
        known = {"job": job, "node": "node000"}
        for parameter in [p for method in methods.values() for p in method.get("parameters", [])]:
            if parameter["in"] == "path":
                names = {"enum": [known[parameter["name"]]]}
                parameter["schema"] = {"anyOf": [names, parameter["schema"]]}
            elif parameter["name"] == "wait_s":
                parameter["schema"]["maximum"] = 0.05
        assert path.startswith("/api/v1/")
    schema = schemathesis.openapi.from_dict(found)
    schema.config.update(base_url=service.url)
    # A stream has no end; it has tests of its own.
    return schema.exclude(path="/api/v1/stream")


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def ask(schema: schemathesis.BaseSchema, *, examples: int, valid: bool, derandomize: bool) -> Counter[int]:
    mode = schemathesis.GenerationMode.POSITIVE if valid else schemathesis.GenerationMode.NEGATIVE
    rules = settings(
        max_examples=examples, deadline=None, suppress_health_check=QUIET, derandomize=derandomize, database=None
    )
    num_routes, statuses = 0, Counter[int]()
    for found in schema.get_all_operations():
        operation = found.ok()
        if not valid and not operation.body and not operation.query:
            continue  # nothing in it can be wrong

        @rules
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: schemathesis.Case) -> None:
            answer = case.call(headers=AUTHORIZED, timeout=60)
            statuses[answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)

        one()
        num_routes += 1
    assert num_routes > 5
    assert statuses[422] > examples
    if valid:  # what is described is answered, and not refused at the door
        assert statuses[200] > examples * num_routes / 4, statuses
    return statuses


@pytest.mark.parametrize("valid", [True, False])
def test_no_request_breaks_the_service(described: schemathesis.BaseSchema, valid: bool) -> None:
    statuses = ask(described, examples=15, valid=valid, derandomize=True)
    assert max(statuses) < 500


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("valid", [True, False])
def test_no_request_of_many_breaks_the_service(described: schemathesis.BaseSchema, valid: bool) -> None:
    statuses = ask(described, examples=300, valid=valid, derandomize=False)
    assert max(statuses) < 500


def test_every_route_says_what_it_answers(service: Serving) -> None:
    with service.client() as client:
        found = client.get("/api/v1/openapi.json").json()
    assert found["security"] == [{"token": []}]
    for path, methods in found["paths"].items():
        for method, route in methods.items():
            assert route.get("summary"), (method, path)
            assert route.get("description"), (method, path)
            assert {"401", "421"} <= set(route["responses"]), (method, path)
            assert any(status.startswith("2") for status in route["responses"])
            if method in ("post", "put", "patch") and not path.endswith("/cancel"):
                assert "schema" in route["requestBody"]["content"]["application/json"]
