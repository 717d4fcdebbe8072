"""How a coding problem is asked: its prompt, its sampling, by token ids or by chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.grid import BASELINE
from pytest_ddtree.servers.handle import Server

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

ABSENT = frozenset({403, 404, 405, 501})
"""HTTP statuses of an endpoint that a server does not have."""


class CodingRequests:
    """Makes the requests of a session's coding eval; every one has the tag of its problem."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._prompts: dict[str, Prompt] = {}
        self._by_text: bool | None = None

    @property
    def by_text(self) -> bool:
        """Whether only texts can be compared: the server has a chat endpoint and no /generate, or the options say so."""
        if self._by_text is None:
            self._by_text = self._ask_for_text()
        return self._by_text

    def conditions(self) -> str:
        """How the answers were had, in one line for reports."""
        settings = self._run.settings
        parts = [
            f"thinking {settings.thinking}",
            f"temperature {settings.coding_temperature:g}",
            f"at most {settings.coding_output} tokens",
            f"{settings.coding_concurrency} at a time",
        ]
        if self.by_text:
            parts.append(
                "asked by chat, judged by text: the server sends no token ids, so no token is verified"
            )
        else:
            parts.append("asked by token ids" if settings.coding_temperature else "judged by token ids")
        return ", ".join(parts)

    def client(self, server: Server) -> AsyncClient:
        """What asks a server for its answers."""
        return self.chat(server) if self.by_text else self._run.async_client(server)

    def chat(self, server: Server) -> AsyncClient:
        """A client of a server's chat endpoint."""
        return self._run.async_client(server, "chat")

    def request(self, problem: Problem, seed: int) -> Request:
        """What a server is asked; the seed counts with a temperature only."""
        settings = self._run.settings
        sampling = Sampling(max_new_tokens=settings.coding_output)
        if settings.coding_temperature > 0:
            # What a model's generation config would add is switched off, so that both servers sample from the same distribution.
            sampling = replace(
                sampling,
                temperature=settings.coding_temperature,
                top_p=settings.coding_top_p,
                top_k=-1,
                min_p=0.0,
                seed=seed,
            )
        if self.by_text:
            return self.chat_request(problem, sampling)
        return Request(sampling=sampling, input_ids=self.prompt(problem).ids, tag=problem.task_id)

    def chat_request(self, problem: Problem, sampling: Sampling) -> Request:
        """The same as a message, which the server renders."""
        thinking = self._run.settings.enable_thinking
        extra = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        return Request(sampling=replace(sampling, extra=extra), text=problem.question, tag=problem.task_id)

    def prompt(self, problem: Problem) -> Prompt:
        """The problem as rendered here."""
        if problem.task_id not in self._prompts:
            ids = self._run.maker("code").chat_ids(problem.question)
            self._prompts[problem.task_id] = Prompt(problem.task_id, ids)
        return self._prompts[problem.task_id]

    def known(self, tag: str) -> Prompt:
        """The prompt of a problem that was asked before. Raises KeyError."""
        return self._prompts[tag]

    def prompts_of(self, problems: Sequence[Problem]) -> list[Prompt]:
        """Those of several problems."""
        return [self.prompt(problem) for problem in problems]

    def _ask_for_text(self) -> bool:
        run, api = self._run, self._run.settings.coding_api
        if api != "auto":
            return api == "chat"
        server = run.get(BASELINE)
        one = Request(sampling=Sampling(max_new_tokens=1), input_ids=(1, 2, 3), tag="is there a /generate")
        record = run.await_(run.async_client(server).generate(one, stream=False), "coding")
        if record.http_status not in ABSENT:
            return False
        run.progress(
            f"{server.url} has no /generate (HTTP {record.http_status}): coding answers are asked by chat and judged by text"
        )
        return True
