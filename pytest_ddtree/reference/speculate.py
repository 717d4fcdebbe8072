"""One step of speculative decoding: draft a block, build trees, verify them, keep what the target agrees with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .arrays import F32, I64
from .choosing import is_plain, next_token
from .model import Rows
from .request import Request
from .runtime import DraftSide, Runtime
from .spans import RowSpan
from .tree import DraftTree, ancestor_mask, build_tree, candidates, chain_tree
from .verify import Walk, walk


def speculate(runtime: Runtime, draft: DraftSide, requests: Sequence[Request]) -> int:
    """Emit at least one token per request (each holds slots for the verify rows); returns the tokens emitted."""
    trees, tokens = _draft(runtime, draft, requests)
    rows, depths = _verify_rows(runtime, draft, requests, trees, tokens)
    stream, features = runtime.target.forward(rows, runtime.pool, capture=draft.model.config.target_layer_ids)
    if features is None:
        raise RuntimeError("the target returned no features for the drafter")
    logits = runtime.target.logits(stream).reshape(len(requests), draft.width, -1)
    logits = runtime.hooks.verify_logits(logits, requests)
    walks = _walk_all(runtime, requests, trees, tokens, logits)
    _commit(runtime, draft, requests, walks, rows, features, depths)
    runtime.hooks.committed(runtime, requests)
    return sum(
        _emit(runtime, request, found, nodes)
        for request, found, nodes in zip(requests, walks, tokens, strict=True)
    )


def _draft(
    runtime: Runtime, draft: DraftSide, requests: Sequence[Request]
) -> tuple[list[DraftTree], list[list[int]]]:
    """Trees and their nodes' tokens, the last known token first."""
    settings, hooks = draft.settings, runtime.hooks
    spans: list[RowSpan] = []
    for index, request in enumerate(requests):
        low = 0 if settings.window is None else max(0, request.kv_length - settings.window)
        low, high = hooks.draft_context((low, request.kv_length), settings.window)
        context = request.table().table.clip(low, high)
        spans.append(RowSpan(index * settings.block_size, settings.block_size, context))
    last = [request.output[-1] for request in requests]
    logits = draft.model.draft(
        np.asarray(last, dtype=np.int64),
        np.asarray([request.kv_length for request in requests], dtype=np.int64),
        spans,
        draft.pool,
        block_size=settings.block_size,
    )
    if settings.algorithm == "DFLASH":
        tree = chain_tree(draft.horizon)
        best = logits.argmax(axis=-1).tolist()
        chains = [
            hooks.draft_tokens([root, *ids], tree, request)
            for root, ids, request in zip(last, best, requests, strict=True)
        ]
        return [tree] * len(requests), chains
    ids, values = candidates(logits, settings.topk)
    all_ids, all_values = ids.tolist(), values.tolist()
    trees = [build_tree(all_values[index], settings.budget) for index in range(len(requests))]
    tokens = [
        hooks.draft_tokens([last[index], *_node_tokens(tree, all_ids[index])], tree, requests[index])
        for index, tree in enumerate(trees)
    ]
    return trees, tokens


def _node_tokens(tree: DraftTree, ids: Sequence[Sequence[int]]) -> list[int]:
    """Tokens of the nodes behind the root."""
    return [ids[depth - 1][rank] for depth, rank in zip(tree.depths[1:], tree.ranks[1:], strict=True)]


def _verify_rows(
    runtime: Runtime,
    draft: DraftSide,
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    tokens: Sequence[Sequence[int]],
) -> tuple[Rows, I64]:
    """Rows and their positions. Lists become arrays once: for this few numbers array calls cost more than loops."""
    width = draft.width
    settings, hooks = draft.settings, runtime.hooks
    spans: list[RowSpan] = []
    masks: list[F32 | None] = []
    flat: list[int] = []
    slots: list[int] = []
    positions: list[int] = []
    for index, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        table = request.table().table
        begin = request.kv_length
        own = table.clip(begin, begin + width)
        spans.append(RowSpan(index * width, width, table.clip(0, begin), own))
        mask = ancestor_mask(tree.parents)
        masks.append(hooks.verify_mask(mask, tree, block_size=settings.block_size))
        for first, end in own:
            slots.extend(range(first, end))
        positions.extend([begin + depth for depth in hooks.verify_depths(tree.depths)])
        flat.extend(tokens[index])
    where = np.array(positions, dtype=np.int64)
    rows = Rows(np.array(flat, dtype=np.int64), where, np.array(slots, dtype=np.int64), spans, masks)
    return rows, where


def _walk_all(
    runtime: Runtime,
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    tokens: Sequence[list[int]],
    logits: F32,
) -> list[Walk]:
    best = logits.argmax(axis=-1).tolist()
    walks: list[Walk] = []
    for index, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        if is_plain(request):
            walks.append(walk(tree.parents, tokens[index], _lookup(best[index])))
        else:
            walks.append(_sampled_walk(runtime, request, tree, tokens[index], logits[index]))
    return walks


def _lookup(choices: Sequence[int]) -> Callable[[int, int], int]:
    return lambda node, _: choices[node]


def _sampled_walk(
    runtime: Runtime, request: Request, tree: DraftTree, tokens: list[int], logits: F32
) -> Walk:
    pending: list[int] = []
    length, hooks = request.length, runtime.hooks
    params = hooks.tree_params(request.params)

    def choose(node: int, depth: int) -> int:
        token = next_token(request, params, logits[node], hooks.draw_position(length + depth, depth), pending)
        children = [tokens[child] for child, parent in enumerate(tree.parents) if parent == node]
        token = hooks.tree_choice(token, children, request)
        pending.append(token)
        return token

    return walk(tree.parents, tokens, choose)


def _commit(
    runtime: Runtime,
    draft: DraftSide,
    requests: Sequence[Request],
    walks: Sequence[Walk],
    rows: Rows,
    features: F32,
    positions: I64,
) -> None:
    """Move accepted keys and values behind the root's, and give the drafter the accepted rows as context."""
    width = draft.width
    moves: list[tuple[int, int]] = []
    kept: list[int] = []
    for index, found in enumerate(walks):
        base = index * width
        kept.append(base)
        for step, node in enumerate(found.accepted, start=1):
            kept.append(base + node)
            if node != step:
                moves.append((base + node, base + step))
    moves = runtime.hooks.compaction(moves, width)
    if moves:
        source, target = zip(*moves, strict=True)
        runtime.pool.move(rows.slots[list(source)], rows.slots[list(target)])
    kept = runtime.hooks.kept_rows(kept, width)
    taken: list[int] = []
    for index, (request, found) in enumerate(zip(requests, walks, strict=True)):
        base = index * width
        taken.extend(range(base, base + found.length))
        request.kv_length += found.length
    draft.model.add_context(features[kept], positions[kept], rows.slots[taken], draft.pool)


def _emit(runtime: Runtime, request: Request, found: Walk, tokens: Sequence[int]) -> int:
    request.verify_steps += 1
    accepted = len(found.accepted)
    histogram = request.accepted_histogram
    if len(histogram) <= accepted:
        histogram.extend([0] * (accepted + 1 - len(histogram)))
    histogram[accepted] += 1
    run = runtime.hooks.emitted([*(tokens[node] for node in found.accepted), found.bonus], request)
    return request.emit(run, runtime.hooks)
