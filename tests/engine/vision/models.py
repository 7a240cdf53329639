"""Tiny random models of Qwen-VL's kind, images for them, and what Hugging Face says of these."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from muxcluster.core.inputs.images.rules import ImageLimits, read_image_rules
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.demo.tokenizer_training import BOS_ID, EOS_ID, PAD_ID, write_tokenizer
from muxcluster.text.images.decoding import Picture, decoded
from muxcluster.text.images.placing import placed
from muxcluster.text.validation.images import ImagePart
from tests.oracles import NEAR_TIE

VOCAB = 512
BEGIN, END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
BEGIN_ID, END_ID, IMAGE_ID, VIDEO_ID = range(VOCAB, VOCAB + 4)
TEMPLATE = (
    "{% for message in messages %}{{ '[' + message['role'] + ']\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]\\n' }}{% endif %}"
)
# A token stands for 8 x 8 pixels; an image has 4 to 48 of them.
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 4 * 64,
    "max_pixels": 48 * 64,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
TEXT_CONFIG = {
    "vocab_size": VOCAB + 8,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [4, 6, 6],
    },
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
}
_TOWER = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
VISION_CONFIGS = {
    "qwen2_5_vl": {
        **_TOWER,
        "hidden_size": 32,
        "intermediate_size": 48,
        "window_size": 16,
        "out_hidden_size": 128,
        "fullatt_block_indexes": [1],
    },
    "qwen2_vl": {**_TOWER, "embed_dim": 32, "mlp_ratio": 2, "hidden_size": 128},
}


def vision_config(family: str) -> AutoConfig:
    """The configuration of a tiny model."""
    return AutoConfig.for_model(
        family,
        text_config=TEXT_CONFIG,
        vision_config=VISION_CONFIGS[family],
        vision_start_token_id=BEGIN_ID,
        vision_end_token_id=END_ID,
        image_token_id=IMAGE_ID,
        video_token_id=VIDEO_ID,
    )


def build_vision_model(directory: Path, family: str = "qwen2_5_vl", *, seed: int = 0) -> Path:
    """Write a directory of a tiny random model that takes images; returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = vision_config(family)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.2 * noise)
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    model.save_pretrained(directory)
    write_tokenizer(directory, VOCAB)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    marks = [AddedToken(text, special=True) for text in (BEGIN, END, IMAGE, VIDEO)]
    assert tokenizer.add_special_tokens(marks) == len(marks)
    assert tokenizer.token_to_id(IMAGE) == IMAGE_ID
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return directory


def noise_image(height: int, width: int, seed: int = 0) -> Image.Image:
    """An image of random pixels."""
    rng = np.random.default_rng((height, width, seed))
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def png_of(image: Image.Image, form: str = "PNG") -> bytes:
    """The image as a file that holds its pixels as they are."""
    buffer = io.BytesIO()
    image.save(buffer, format=form, lossless=True)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture_of(image: Image.Image, directory: Path) -> Picture:
    """The image as a server of the model in `directory` makes it."""
    data = base64.b64encode(png_of(image)).decode()
    return decoded(ImagePart(data, "image"), read_image_rules(directory), ImageLimits())


def with_marks(*parts: Sequence[int] | None) -> list[int]:
    """A prompt of texts (their tokens) and images (None), each with its marks."""
    tokens: list[int] = []
    for part in parts:
        tokens += [BEGIN_ID, IMAGE_ID, END_ID] if part is None else part
    return tokens


def vision_request(
    request_id: str,
    directory: Path,
    prompt: Sequence[int],
    images: Sequence[Image.Image],
    sampling: SamplingParams,
) -> Request:
    """A request of the model that the id begins with; prompt: with a place for each image."""
    pictures = [picture_of(image, directory) for image in images]
    tokens, own = placed(np.asarray(prompt, dtype=np.int32), pictures, IMAGE_ID)
    return Request(request_id, request_id.split("/")[0], tokens, sampling, images=own)


class VisionOracle:
    """Greedy continuations by transformers' own model and image processor, in fp32."""

    def __init__(self, directory: Path) -> None:
        fields = {name: value for name, value in PROCESSOR.items() if not name.endswith("type")}
        self._processor = Qwen2VLImageProcessorPil(**fields)
        self._model = AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32
        ).eval()
        self._model.generation_config = GenerationConfig(pad_token_id=0)
        self._continuations: dict[object, tuple[list[int], list[float]]] = {}
        self.num_near_ties = 0

    def expanded(
        self, prompt: Sequence[int], images: Sequence[Image.Image]
    ) -> tuple[list[int], dict[str, torch.Tensor]]:
        """The prompt with all tokens of its images, and the model's inputs for these."""
        if not images:
            return list(prompt), {}
        inputs = self._processor(images=list(images), return_tensors="pt")
        grids = inputs["image_grid_thw"]
        counts = iter((grids.prod(-1) // PROCESSOR["merge_size"] ** 2).tolist())
        tokens: list[int] = []
        for token in prompt:
            tokens += [token] * next(counts) if token == IMAGE_ID else [token]
        assert next(counts, None) is None
        kinds = (torch.tensor([tokens]) == IMAGE_ID).int()
        return tokens, {
            "pixel_values": inputs["pixel_values"],
            "image_grid_thw": grids,
            "mm_token_type_ids": kinds,
        }

    def continue_(
        self, prompt: Sequence[int], images: Sequence[Image.Image], num_tokens: int
    ) -> tuple[list[int], list[float]]:
        """`num_tokens` greedy tokens after `prompt` and the gap between the two best of each.

        Remembered, as many tests ask the same.
        """
        key = (num_tokens, *prompt, *(image.tobytes() for image in images))
        if key not in self._continuations:
            self._continuations[key] = self._generate(prompt, images, num_tokens)
        return self._continuations[key]

    def _generate(
        self, prompt: Sequence[int], images: Sequence[Image.Image], num_tokens: int
    ) -> tuple[list[int], list[float]]:
        tokens, inputs = self.expanded(prompt, images)
        ids = torch.tensor([tokens])
        config = GenerationConfig(
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        with torch.inference_mode():
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **inputs
            )
        best = torch.stack(out.logits)[:, 0].float().topk(2).values
        return out.sequences[0, len(tokens) :].tolist(), (best[:, 0] - best[:, 1]).tolist()

    def check(
        self, prompt: Sequence[int], images: Sequence[Image.Image], output: Sequence[int]
    ) -> None:
        """AssertionError unless `output` is the greedy continuation, as `GreedyOracle.check`."""
        done = 0
        while done < len(output):
            before = [*prompt, *output[:done]]
            expected, gaps = self.continue_(before, images, len(output) - done)
            got = list(output[done:])
            if got == expected:
                return
            wrong = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
            assert gaps[wrong] < NEAR_TIE, (
                f"output token {done + wrong} is {got[wrong]}, Hugging Face says "
                f"{expected[wrong]} by a gap of {gaps[wrong]:.2e}"
            )
            self.num_near_ties += 1
            done += wrong + 1
