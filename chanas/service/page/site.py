"""The page as a part of the application."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from chanas.service.page.routes import router


def add_page(app: FastAPI) -> FastAPI:
    """The application with the page in it."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    return app
