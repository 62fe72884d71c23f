"""`/docs`: the API as one page that fetches nothing but `/openapi.json`, so that it works without the internet."""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI
from starlette.responses import HTMLResponse

__all__ = ["install"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


def install(app: FastAPI) -> None:
    page = resources.files(__package__).joinpath("docs.html").read_text("utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": POLICY})
