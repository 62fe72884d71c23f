"""`/v1/weights`: publish weights, and see which are desired and which are loaded where."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from corl.weights import Snapshot, SnapshotError, open_snapshot
from corl.wire import WeightsStatus, WeightsTag, WeightsUpdate
from corl_judge.errors import Conflict, Invalid
from corl_judge.fleet import Published
from corl_judge.routes.answering import answered, body, documented, json_body, respond, service_of
from corl_judge.service import Service

__all__ = ["router"]

router = APIRouter(tags=["weights"])

EXAMPLE = {
    "run": "demo",
    "incarnation": 1,
    "version": 18,
    "digest": "6c1f0ae1c2b24e0c2a53f1d0d8f5a5a2c1a1f4f1c6b7f0e9a3b5d2c4e6f8a0b1",
    "uri": "demo/a/v00000018-i0001",
}


@router.put(
    "/v1/weights",
    status_code=202,
    response_model=WeightsStatus,
    responses=documented(409, 413, 422),
    openapi_extra=json_body(WeightsUpdate, EXAMPLE),
    summary="Make published weights the desired ones",
)
async def publish(request: Request) -> Response:
    """202 once path, manifest, names, shapes and dtypes are checked; every replica reloads before it takes more work.

    Sent again it changes nothing. An older version or incarnation is a 409.
    """
    update = await body(request, WeightsUpdate)
    service = service_of(request)
    service.require_started()
    if service.settings.frozen:
        raise Conflict(f"member {service.settings.member!r} is frozen: it has no trainer", kind="frozen")
    await service.leases.fence(update.run, update.incarnation)
    snapshot = await asyncio.to_thread(_opened, service, update)
    tag = WeightsTag(incarnation=update.incarnation, version=update.version, digest=update.digest)
    if await service.fleet.desire(Published(tag=tag, uri=str(snapshot.folder), run=update.run)):
        service.replica.look()
    return respond(await _status(service), status=202)


@router.get(
    "/v1/weights",
    response_model=WeightsStatus,
    responses=documented(422, 429),
    summary="Desired weights, and what each replica has loaded",
)
async def show(
    request: Request,
    version: Annotated[int | None, Query(ge=0, le=2**53, description="wait until every replica serves it")] = None,
    wait_s: Annotated[float, Query(ge=0, le=86_400)] = 0.0,
) -> Response:
    """With `version` and `wait_s`: returns when every live replica serves that version or a newer one, when one failed
    to load what was asked for, or when the time has passed; the state is in the answer."""
    service = service_of(request)

    longest = min(wait_s, service.settings.deadline_s)

    async def wait(_: object) -> WeightsStatus:
        deadline = time.monotonic() + longest
        while True:
            status = await _status(service)
            left = deadline - time.monotonic()
            if version is None or left <= 0 or _reached(status, version):
                return status
            await service.replica.wait_changed(min(left, service.settings.poll_s))

    return respond(await answered(request, service.open["weights"], longest + 60.0, wait))


def _reached(status: WeightsStatus, version: int) -> bool:
    """Served everywhere, or failed somewhere: waiting longer would tell nothing new."""
    if any(replica.reload_error is not None for replica in status.replicas):
        return True
    serving = [replica for replica in status.replicas if replica.state not in ("starting", "draining")]
    incarnation = 0 if status.desired is None else status.desired.incarnation
    return bool(serving) and all(
        replica.loaded is not None
        and replica.loaded.incarnation == incarnation
        and replica.loaded.version >= version
        and replica.state not in ("draining_for_reload", "loading")
        for replica in serving
    )


async def _status(service: Service) -> WeightsStatus:
    view = await service.fleet.view()
    replicas = [r for r in await service.fleet.replicas() if r.id != service.replica.id]
    return WeightsStatus(
        desired=None if view.desired is None else view.desired.tag,
        uri=None if view.desired is None else view.desired.uri,
        replicas=[service.replica.info(), *replicas],
    )


def _opened(service: Service, update: WeightsUpdate) -> Snapshot:
    """The cheap checks. Raises Invalid naming what to correct."""
    root = service.settings.weights
    if root is None:
        raise Invalid.field(
            "uri", "this judge was started without a weights folder: start it with --weights", update.uri
        )
    try:
        snapshot = open_snapshot(update.uri, Path(root))
    except (SnapshotError, OSError) as error:
        raise Invalid.field("uri", str(error), update.uri) from error
    manifest = snapshot.manifest
    said = {
        "digest": (update.digest, manifest.state_digest),
        "version": (update.version, manifest.version),
        "incarnation": (update.incarnation, manifest.incarnation),
        "run": (update.run, manifest.run),
        "member": (service.settings.member, manifest.member),
    }
    for field, (asked, published) in said.items():
        if asked != published:
            raise Invalid.field(field, f"is {asked!r}, the manifest in {snapshot.folder} says {published!r}", asked)
    service.replica.check(snapshot)
    return snapshot
