"""POST /plant, only with --plant-switch: exchange the planted faults of the running server."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ..faults import plant
from ..faults.base import PlantError
from ..faults.switch import acts_at_start
from .errors import json_response, read_json
from .service import Service


async def exchange(request: Request) -> Response:
    """`{"plant": [NAME[:ARG][@RATE], ...]}`; an empty list heals. 400 for an unknown fault, and while something runs."""
    service: Service = request.app.state.service
    body = await read_json(request)
    names = body.get("plant")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return json_response({"error": {"message": "plant must be a list of fault names."}}, 400)
    try:
        hooks = plant(names)
    except PlantError as error:
        return json_response({"error": {"message": str(error)}}, 400)
    if acts_at_start(hooks):
        return json_response(
            {"error": {"message": f"{', '.join(names)} acts while a server starts: use --plant."}}, 400
        )
    if not await service.frontend.plant(hooks):
        return json_response(
            {"error": {"message": "Nothing was planted: there are running or waiting requests."}}, 400
        )
    service.args.plant = names
    return json_response({"plant": names})
