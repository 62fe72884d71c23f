"""The OpenAPI document, complete, and a page that shows it without fetching anything from elsewhere."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import corl
from corl.wire import ErrorBody, JobRequest, RolloutsRequest, ScoresRequest, TrainerUpdate, WeightsUpdate
from corl_judge.auth import PROBES
from corl_judge.compat.wire import BODIES as COMPAT_BODIES

__all__ = ["install"]

BODIES: tuple[type[BaseModel], ...] = (
    RolloutsRequest, ScoresRequest, JobRequest, WeightsUpdate, TrainerUpdate, ErrorBody, *COMPAT_BODIES,
)  # fmt: skip

DESCRIPTION = """
One cohort member's model as a service: rollouts for its own trainer, rewards by its majority vote for its peers', and
new weights while it runs. Errors are RFC 9457 problem documents; `type` tells them apart.
"""


def install(app: FastAPI) -> None:
    """Routes read their bodies themselves, so the bodies' schemas are added here."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title="Co-RL peer judge",
                version=corl.__version__,
                description=DESCRIPTION,
                routes=app.routes,
            )
            _, bodies = models_json_schema(
                [(model, "validation") for model in BODIES], ref_template="#/components/schemas/{model}"
            )
            components = made.setdefault("components", {})
            components["schemas"] = {**components.get("schemas", {}), **bodies.get("$defs", {})}
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic", "description": "the key is the password"},
            }
            for path, operations in made["paths"].items():
                for operation in operations.values():
                    operation["security"] = [] if path in PROBES else [{"bearer": []}, {"basic": []}, {}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
