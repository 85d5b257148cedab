from pathlib import Path

import pytest

from benchmarks import fine_tuning
from dlx.training.recipe.recipe import Adapter


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object, object]:
    out = tmp_path_factory.mktemp("talks")
    return out, *fine_tuning.prepared_talks(out)


@pytest.mark.parametrize("seed", range(3))
def test_a_trained_model_learns_to_answer_by_all_weights_and_by_an_adapter(seed: int, talks: tuple) -> None:
    out, text, answers = talks
    whole, adapter = fine_tuning.talked(text, answers, out, seed, tries=2)
    assert fine_tuning.TALKS[1][1] == Adapter(), "what a run of the kind `lora` trains"
    for one in (whole, adapter):
        assert 1 - one.after / one.before >= 0.12, "as the tutorial says"
    assert whole.bytes > 8 * adapter.bytes
