"""What becomes of samples before a model of transformers, against its own processors and tokenizers."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gradscore.config import Config
from gradscore.data import Preprocessing, PreprocessingConfig
from gradscore.errors import DataError, ModelError
from gradscore.models import FolderProcessor
from gradscore.system import import_torchvision

import_torchvision()
transformers, tokenizers = map(importlib.import_module, ("transformers", "tokenizers"))

GENERATOR = np.random.default_rng(0)
PICTURE = GENERATOR.integers(0, 256, (11, 9, 3), dtype=np.uint8)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "a"]


def image_folder(folder: Path) -> Path:
    transformers.ViTImageProcessor(
        size={"height": 8, "width": 8}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4]
    ).save_pretrained(folder)
    return folder


def text_folder(folder: Path, *, positions: int = 12) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    vocabulary = {word: place for place, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=positions).save_pretrained(folder)
    return folder


def test_images_are_prepared_as_by_the_processor(tmp_path: Path) -> None:
    found = FolderProcessor(image_folder(tmp_path))(PICTURE)
    wanted = transformers.AutoImageProcessor.from_pretrained(tmp_path)(Image.fromarray(PICTURE), return_tensors="pt")
    torch.testing.assert_close(found, wanted["pixel_values"][0])


def test_grey_images_become_three_channels(tmp_path: Path) -> None:
    grey = PICTURE[:, :, :1]
    found = FolderProcessor(image_folder(tmp_path))(grey)
    torch.testing.assert_close(found, FolderProcessor(tmp_path)(np.repeat(grey, 3, axis=2)))


LENGTHS = {"as the model has places": (None, 12), "as it is set": (7, 7), "longer than the model": (40, 12)}


@pytest.mark.parametrize(("max_length", "length"), LENGTHS.values(), ids=LENGTHS)
def test_texts_are_prepared_as_by_the_tokenizer(tmp_path: Path, max_length: int | None, length: int) -> None:
    found = FolderProcessor(text_folder(tmp_path), max_length=max_length)("a good film, a bad film a good a good a bad")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    wanted = tokenizer(
        "a good film, a bad film a good a good a bad",
        padding="max_length", truncation=True, max_length=length, return_tensors="pt",
    )  # fmt: skip
    torch.testing.assert_close(found, {name: each[0] for name, each in wanted.items()})
    assert found["input_ids"].shape == (length,)


def test_waves_are_prepared_as_by_the_feature_extractor(tmp_path: Path) -> None:
    extractor = transformers.Wav2Vec2FeatureExtractor(sampling_rate=16000)
    extractor.save_pretrained(tmp_path)
    wave = GENERATOR.normal(3, 2, 500)
    found = FolderProcessor(tmp_path)(wave)
    wanted = extractor(wave.astype(np.float32), sampling_rate=16000, return_tensors="pt")["input_values"][0]
    torch.testing.assert_close(found, wanted)


def test_other_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got float64 of shape \(2, 2\); set preprocessing.processor to null"):
        FolderProcessor(image_folder(tmp_path))(np.zeros((2, 2)))


def test_numbers_for_a_tokenizer_are_refused_as_numbers(tmp_path: Path) -> None:
    """A column of the texts 12 and 13 is read as numbers, which a feature extractor would take for sound."""
    with pytest.raises(DataError, match=r"takes text, got 1 numbers; a column whose entries are all numbers is read"):
        FolderProcessor(text_folder(tmp_path))(np.array([12.0]))


def test_text_for_a_model_of_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has nothing that Auto(Config|Tokenizer) can read"):
        FolderProcessor(image_folder(tmp_path))("a film")


def test_a_folder_without_a_processor(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no processor and no tokenizer"):
        Preprocessing(PreprocessingConfig(processor=tmp_path))


def settings(folder: Path, **sections: object) -> Config:
    source = {"source": "sklearn:digits"}
    found = {
        "model": {"source": "transformers:vit", "num_classes": 3},
        "data": {"auxiliary": [], "in_dist": {"fit": source, "test": source}},
        "run": "run",
        **sections,
    }
    return Config.model_validate(found, context={"base": folder})


CHOSEN = {
    "nothing set": ({}, "vit"),
    "a length": ({"preprocessing": {"max_length": 9}}, "vit"),
    "none": ({"preprocessing": {"processor": None}}, None),
    "by hand": ({"preprocessing": {"resize": 8}}, None),
}


@pytest.mark.parametrize(("sections", "wanted"), CHOSEN.values(), ids=CHOSEN)
def test_the_processor_of_the_folder_is_taken_unless_anything_else_is_set(
    tmp_path: Path, sections: dict, wanted: str | None
) -> None:
    image_folder(tmp_path / "vit")
    found = settings(tmp_path, **sections).preprocessing.processor
    assert found == (None if wanted is None else tmp_path / wanted)
