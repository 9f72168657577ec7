"""A model inside an installed Python distribution: a GGUF file, converted once to a bf16 checkpoint."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import file_sha256
from eyrie.core.stage import Work
from eyrie.core.target import Source

#: what decides the converted bytes
TOOLS = ("gguf", "transformers", "safetensors", "torch")


def locate(source: Source) -> Path:
    """Path of the declared file. Raises EyrieError when the distribution or the file is not there."""
    try:
        distribution = metadata.distribution(source.package)
    except metadata.PackageNotFoundError:
        raise EyrieError(
            f"The model's package {source.package!r} is not installed.",
            code="model-package-missing",
            todo="Run playbooks/provision.yml; the profile's lock (eyrie_runtime_lock) must name it.",
        ) from None
    path = Path(str(distribution.locate_file(source.file)))
    if not path.is_file():
        raise EyrieError(
            f"The model's package {source.package} {distribution.version} holds no {source.file}.",
            where=str(path),
            code="model-file-missing",
            todo="Correct eyrie_target_source_file, or pin the version that holds it.",
        )
    return path


def missing(source: Source) -> str:
    """Why the file cannot be used, '' when it can: the plan's gate."""
    try:
        locate(source)
    except EyrieError as error:
        return str(error)
    return ""


def convert(source: Source, dtype: str, out: Path, work: Work) -> None:
    """Write config, tokenizer and weights of a GGUF file as a checkpoint in `dtype`.

    Transformers dequantizes into float32 and refuses to save what it loaded from GGUF, so the tensors go through a
    fresh model of the same configuration.
    """
    path = locate(source)
    work.progress.start("convert", total=4, unit="steps")
    if source.sha256 and (digest := file_sha256(path)) != source.sha256:
        raise EyrieError(
            f"The model's file has SHA-256 {digest}, declared is {source.sha256}.",
            where=str(path),
            code="model-file-changed",
            todo="Reinstall the package, or declare the new file in eyrie_target_source_sha256 if it is meant.",
        )
    work.progress.advance()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = str(path.parent), path.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    work.check_stop()
    work.progress.advance()
    kind = getattr(torch, dtype)
    config = loaded.config
    for leftover in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        if hasattr(config, leftover):
            delattr(config, leftover)
    fresh = AutoModelForCausalLM.from_config(config, dtype=kind)
    fresh.load_state_dict({name: tensor.to(kind) for name, tensor in loaded.state_dict().items()})
    del loaded
    work.check_stop()
    work.progress.advance()
    fresh.save_pretrained(out)
    tokenizer.save_pretrained(out)
    work.progress.advance()
