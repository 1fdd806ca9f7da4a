"""Small multimodal models with random weights that vLLM loads. Nothing is downloaded.

    python -m examples.demo.tiny_models [--cache DIR] [NAME ...]

prints the folder of each model. A model that exists already is left alone.

``llava``       16 tokens an image, every image resized to one size
``qwen3vl``     DeepStack: the encoder output is four times wider than the hidden size, and
                the number of tokens depends on the size of the picture
``llava-large`` 576 tokens of 4096 numbers (9 MiB in float32) an image, to time the transfer

The weights are drawn with a standard deviation of 0.2, which makes the greedy answer
depend on the picture: equal tokens mean that the right embeddings arrived.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

REPO = Path(__file__).resolve().parents[2]
DEFAULT_CACHE = REPO / ".cache" / "models"

TURN_PARTS = "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"


@dataclass(frozen=True)
class ModelSpec:
    """What a tiny model looks like. The fields that a family has no use for stay at 0."""

    family: str  # "llava" or "qwen3vl"
    hidden_size: int = 128
    layers: int = 2
    image_size: int = 0  # llava: side of the square that every picture becomes
    patch_size: int = 14
    max_positions: int = 4096
    weight_std: float = 0.2
    seed: int = 0

    @property
    def image_tokens(self) -> int:
        """Tokens an image takes (llava only)."""
        return (self.image_size // self.patch_size) ** 2

    def fingerprint(self) -> str:
        parts = [repr(sorted(asdict(self).items())), version("transformers"), Path(__file__).read_text()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]


SPECS = {
    "llava": ModelSpec("llava", image_size=56),
    "qwen3vl": ModelSpec("qwen3vl", layers=4, patch_size=16),
    "llava-large": ModelSpec("llava", hidden_size=4096, layers=1, image_size=336),
}


def make_model(name: str, cache: Path = DEFAULT_CACHE, spec: ModelSpec | None = None) -> Path:
    """The folder of the model ``name``, made now if the cache does not have it.

    Several processes may ask at the same time: each makes its own copy in a temporary
    folder and the first rename wins. ``spec`` makes another model than the one of that name.
    """
    spec = spec or SPECS[name]
    target = cache / f"{name}-{spec.fingerprint()}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        _hide_progress_bars()
        {"llava": _make_llava, "qwen3vl": _make_qwen3vl}[spec.family](spec, draft)
        draft.chmod(0o755)
        os.rename(draft, target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _hide_progress_bars() -> None:
    logging: Any = importlib.import_module("transformers.utils.logging")
    logging.disable_progress_bar()


def _tokenizer(special: list[str], extra: dict[str, str], **roles: str) -> PreTrainedTokenizerFast:
    """A byte-level vocabulary of about 300 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    hf: Any = importlib.import_module("transformers")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    bpe.train_from_iterator(["what is in this image? describe the pictures."], trainer)
    tokenizer: PreTrainedTokenizerFast = hf.PreTrainedTokenizerFast(
        tokenizer_object=bpe, extra_special_tokens=extra, **roles
    )
    return tokenizer


def _vocab_size(tokenizer: PreTrainedTokenizerFast) -> int:
    return (len(tokenizer) + 63) // 64 * 64


def _randomise(model: torch.nn.Module, spec: ModelSpec) -> None:
    import torch

    torch.manual_seed(spec.seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=spec.weight_std)


def _nest_vision_tower(weights: Path) -> None:
    """transformers 5 leaves out one level of the CLIP tower's names, and vLLM expects it."""
    from safetensors.torch import load_file, save_file

    def renamed(name: str) -> str:
        if name.startswith("vision_tower.") and "vision_model" not in name:
            return name.replace("vision_tower.", "vision_tower.vision_model.", 1)
        return name

    tensors = {renamed(name): tensor for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})


def _make_llava(spec: ModelSpec, out: Path) -> None:
    hf: Any = importlib.import_module("transformers")

    tokenizer = _tokenizer(
        ["<pad>", "<s>", "</s>", "<image>"],
        {"image_token": "<image>"},
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
    )
    template = (
        "{% for m in messages %}{{ m['role']|upper }}: "
        + TURN_PARTS
        + "{% if c['type'] in ('image', 'image_url') %}<image>\n"
        "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %} {% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    )
    tokenizer.chat_template = template
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=spec.image_size,
            patch_size=spec.patch_size,
            projection_dim=64,
        ),
        text_config=hf.LlamaConfig(
            vocab_size=_vocab_size(tokenizer),
            hidden_size=spec.hidden_size,
            intermediate_size=256,
            num_hidden_layers=spec.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=spec.max_positions,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
        image_token_index=image_token,
        image_token_id=image_token,
        image_seq_length=spec.image_tokens,
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )
    model = hf.LlavaForConditionalGeneration(config).float()
    _randomise(model, spec)
    model.save_pretrained(out)
    _nest_vision_tower(out / "model.safetensors")
    image_processor: Any = getattr(hf, "CLIPImageProcessorPil", None) or hf.CLIPImageProcessor
    side = spec.image_size
    crop = {"height": side, "width": side}
    hf.LlavaProcessor(
        image_processor=image_processor(size={"shortest_edge": side}, crop_size=crop),
        tokenizer=tokenizer,
        patch_size=spec.patch_size,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(out)


def _make_qwen3vl(spec: ModelSpec, out: Path) -> None:
    hf: Any = importlib.import_module("transformers")
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    words = "endoftext im_start im_end vision_start vision_end vision_pad image_pad video_pad"
    special = [f"<|{word}|>" for word in words.split()]
    tokenizer = _tokenizer(
        special,
        {
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_start_token": "<|vision_start|>",
            "vision_end_token": "<|vision_end|>",
        },
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        + TURN_PARTS
        + "{% if c['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
        "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.chat_template = template
    token_id = tokenizer.convert_tokens_to_ids
    config = hf.Qwen3VLConfig(
        text_config={
            "vocab_size": _vocab_size(tokenizer),
            "hidden_size": spec.hidden_size,
            "intermediate_size": 256,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": spec.max_positions,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 4,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "patch_size": spec.patch_size,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": spec.hidden_size,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0, 1, 2],
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
    )
    model = hf.Qwen3VLForConditionalGeneration(config).float()
    _randomise(model, spec)
    model.save_pretrained(out)
    pixels: dict[str, Any] = {
        "patch_size": spec.patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 4096, "longest_edge": 65536},
    }
    hf.Qwen3VLProcessor(
        image_processor=hf.Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**pixels),
        chat_template=template,
    ).save_pretrained(out)


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make tiny multimodal models with random weights.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SPECS)} (llava qwen3vl)")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder to make them in")
    options = parser.parse_args(None if argv is None else list(argv))
    for name in options.names or ["llava", "qwen3vl"]:
        if name not in SPECS:
            parser.error(f"there is no model {name!r}; choose of {', '.join(SPECS)}")
        print(make_model(name, options.cache))


if __name__ == "__main__":
    main()
