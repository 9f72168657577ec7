"""Proof of what serves: owner of the port, model, speculation in force, a real answer, states or acceptance."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError, GateError
from eyrie.core.pipeline import Pipeline
from eyrie.serve import engines, execute, http, launch, metrics, records
from eyrie.serve.engines.base import InForce
from eyrie.supervise import processes

#: plain requests of several kinds; the acceptance probe asks them all at once, at temperature 0
PROBES = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short list of things to pack for a weekend in the mountains.",
    "What is the difference between a list and a tuple in Python?",
    "Tell me a short story about a lighthouse keeper.",
)
PROBE_TOKENS = 48
PROBE_LIMIT_S = 60.0


def prove(pipeline: Pipeline, profile: str) -> dict[str, Any]:
    """Prove that `profile` serves now, with what it was last launched with.

    Returns {profile, model, method, draft, num_speculative_tokens, fingerprint, ...}. Raises GateError when
    something else serves, or nothing.
    """
    document = launch.read(pipeline.root, profile)
    if not document:
        raise GateError(
            f"{profile} was never started on this host.", code="not-serving", todo="Run playbooks/serve.yml."
        )
    if document["served_model_name"] != pipeline.target.name:
        raise GateError(
            f"{profile} serves {document['served_model_name']}, not {pipeline.target.name}.", code="wrong-model"
        )
    return prove_document(pipeline.root, document)


def prove_document(root: Path, document: dict[str, Any], acceptance: bool = False) -> dict[str, Any]:
    """Prove that exactly this launch document serves. `acceptance`: also the probe against an untrained draft."""
    url = document["base_url"]
    record = execute.launched(root, document["profile"])
    pids = _check_process(document, record)
    _check_owner(document, pids)
    try:
        found = {
            "profile": document["profile"],
            "fingerprint": document["fingerprint"],
            "pid": record["pid"],
            "base_url": url,
            "model": _check_model(url, document),
            **_check_method(url, document, _in_force(root, document, record)),
        }
        if document["profile"] == "extract":
            found["states"] = _check_states(url, document)
        else:
            found["answer"] = _check_answer(url, document)
        if acceptance and document["min_acceptance"] > 0:
            found["acceptance"] = _check_acceptance(url, document)
    except http.Unreachable as error:
        raise GateError(f"{document['profile']} stopped answering: {error.what}", where=url, code="silent") from None
    return found


def _check_process(document: dict[str, Any], record: dict[str, Any]) -> set[int]:
    if not record:
        raise GateError(f"no process of {document['profile']} lives.", code="not-serving")
    if record["fingerprint"] != document["fingerprint"]:
        raise GateError(
            f"{document['profile']} runs with other settings: running {record['fingerprint'][:12]}, "
            f"wanted {document['fingerprint'][:12]}.",
            code="wrong-settings",
        )
    return processes.family(int(record["pid"]))


def _check_owner(document: dict[str, Any], pids: set[int]) -> None:
    owners = processes.port_owners(document["port"])
    if owners and owners <= pids:
        return
    if owners is not None and not owners:
        raise GateError(f"nobody listens on port {document['port']}.", code="not-serving")
    raise foreign_port(document["port"], (owners or set()) - pids)


def foreign_port(port: int, owners: set[int]) -> GateError:
    """The port belongs to someone else; named, never killed."""
    named = "; ".join(f"pid {pid}: {processes.command(pid)}" for pid in sorted(owners))
    return GateError(
        f"port {port} is owned by a process that is not ours: {named or 'another user (not visible to us)'}.",
        code="port-foreign",
        todo="Stop that process or set eyrie_server_port; Eyrie never kills what it did not start.",
    )


def _check_model(url: str, document: dict[str, Any]) -> str:
    answer = http.get(url, "/v1/models")
    names = [str(item.get("id")) for item in (answer.json.get("data") or [])] if answer.status == 200 else []
    wanted = str(document["served_model_name"])
    if wanted not in names:
        raise GateError(
            f"the server at {url} serves {', '.join(names) or 'no model'}, not {wanted}.", code="wrong-model"
        )
    return wanted


def _in_force(root: Path, document: dict[str, Any], record: dict[str, Any]) -> InForce:
    """What the engine says of its speculation; a long-lived process said it in a log that may be rotated away."""
    log = head(launch.log_path(root, document["profile"]), int(record.get("log_offset") or 0))
    running = engines.get(document["engine"]).in_force(document["base_url"], log)
    known = records.proved(root, record)
    if running.method is None and known:
        return InForce(known["method"], known["draft"], known["num_speculative_tokens"], "proved at its start")
    return running


def head(log: Path, since: int, limit: int = 4 << 20) -> list[str]:
    """Lines of a log from byte `since` on: a process states its configuration when it starts."""
    try:
        with open(log, "rb") as stream:
            stream.seek(since)
            return stream.read(limit).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _check_method(url: str, document: dict[str, Any], running: InForce) -> dict[str, Any]:
    """What the engine itself says of its speculation must be what was asked for."""
    wanted = str(document["method"])
    shown = {"": "no speculation"}
    if running.method is None:
        raise GateError(
            f"{document['profile']} does not say which speculation is in force.",
            where=url,
            code="method-unknown",
            why="The engine's start-up line or its /server_info was not understood.",
            todo="Is this version of the engine the pinned one?",
        )
    if running.method != wanted:
        raise GateError(
            f"{document['profile']} runs with {shown.get(running.method, running.method)}, "
            f"wanted {shown.get(wanted, wanted)}.",
            code="wrong-method",
        )
    if wanted == "eagle3":
        if running.draft != document["draft"]:
            raise GateError(
                f"the draft in force is {running.draft or 'unknown'}, wanted {document['draft']}.", code="wrong-draft"
            )
        if running.num_speculative_tokens != document["num_speculative_tokens"]:
            raise GateError(
                f"{running.num_speculative_tokens} tokens are drafted per step, wanted "
                f"{document['num_speculative_tokens']}.",
                code="wrong-draft-tokens",
            )
    counts = metrics.scrape(url) if document["engine"] == "vllm" else {}
    if document["engine"] == "vllm" and metrics.speculates(counts) and not wanted:
        raise GateError("the baseline counts drafted tokens: it is not a baseline.", where=url, code="wrong-method")
    return {
        "method": wanted,
        "draft": document["draft"],
        "num_speculative_tokens": document["num_speculative_tokens"],
        "proof": running.source,
    }


def _check_answer(url: str, document: dict[str, Any]) -> str:
    """A real chat answer: a server without a chat template is healthy and refuses every conversation."""
    text = ask(url, document["served_model_name"], PROBES[0], 8)
    if not text.strip():
        raise GateError("the server answered a plain question with nothing.", where=url, code="empty-answer")
    return text


def ask(url: str, model: str, question: str, tokens: int, timeout_s: float = 120.0) -> str:
    """One chat answer at temperature 0. Raises GateError when the server refuses."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    answer = http.post(url, "/v1/chat/completions", body, timeout_s)
    if answer.status != 200:
        raise GateError(
            f"the server refused a plain question with status {answer.status}: {answer.text[:300]}",
            where=url,
            code="answer-refused",
            todo="Has the model a chat template?" if answer.status == 400 else "See the server's log.",
        )
    message = answer.json["choices"][0]["message"]
    return str(message.get("content") or message.get("reasoning_content") or message.get("reasoning") or "")


def _check_states(url: str, document: dict[str, Any]) -> dict[str, Any]:
    """One captured prompt: shape [tokens, layers, hidden] as the draft's trainer expects it."""
    body = {"model": document["served_model_name"], "prompt": PROBES[0], "max_tokens": 1, "temperature": 0}
    answer = http.post(url, "/v1/completions", body)
    if answer.status != 200:
        raise GateError(
            f"the extract server refused a prompt with status {answer.status}: {answer.text[:300]}",
            where=url,
            code="answer-refused",
        )
    place = (answer.json.get("kv_transfer_params") or {}).get("hidden_states_path")
    if not place:
        raise GateError(
            "the extract server answered without states.",
            where=url,
            code="no-states",
            why="Its answer names no hidden_states_path: the connector is not in force.",
        )
    path = Path(place)
    if Path(document["storage"]) not in path.parents:
        raise GateError(f"states went to {path}, not below {document['storage']}.", code="states-elsewhere")
    try:
        shape, dtype = _states_shape(path)
        tokens = int(answer.json["usage"]["prompt_tokens"])
        wanted = [tokens, len(document["captured_layers"]), document["hidden_size"]]
        if shape != wanted:
            raise GateError(f"captured states have shape {shape}, wanted {wanted}.", where=str(path), code="bad-states")
    finally:
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".lock").unlink(missing_ok=True)
    return {"shape": shape, "dtype": dtype}


def _states_shape(path: Path, limit_s: float = 20.0) -> tuple[list[int], str]:
    """The client is answered before the file is written: wait for it."""
    from eyrie.gates import tensors

    deadline = time.monotonic() + limit_s
    while True:
        try:
            entry = tensors.header(path)["hidden_states"]
            return list(entry.shape), entry.dtype
        except (FileNotFoundError, KeyError, EyrieError) as error:
            if time.monotonic() > deadline:
                raise GateError(
                    "the extract server's states never came.", where=str(path), code="no-states", why=str(error)
                ) from None
            time.sleep(0.1)


def _check_acceptance(url: str, document: dict[str, Any]) -> dict[str, Any]:
    """Within a minute: what is drafted must be accepted more often than from an untrained draft."""
    begin = time.monotonic()
    engine, model = engines.get(document["engine"]), document["served_model_name"]
    before = metrics.scrape(url)
    with ThreadPoolExecutor(len(PROBES)) as pool:
        list(pool.map(lambda question: ask(url, model, question, PROBE_TOKENS, PROBE_LIMIT_S), PROBES))
    found = engine.acceptance(url, before, metrics.scrape(url))
    length, floor = found["length"], document["min_acceptance"]
    if length is None or length < floor:
        shown = "nothing was drafted" if length is None else f"acceptance length {length:.3f}"
        raise GateError(
            f"the draft does not draft: {shown}, at least {floor} is wanted.",
            where=document["draft"],
            code="no-acceptance",
            why="An untrained draft, or one trained on other layers or another vocabulary, shows 1.00.",
            todo="Compare the draft's layer ids and vocabulary with how its states were captured.",
        )
    return {**found, "seconds": round(time.monotonic() - begin, 3)}
