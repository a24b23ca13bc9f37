"""The Python on the pages runs: each block by itself, with the model, batch and loss that its page speaks of."""

import pytest
import torch
from docs_pages import DOCS, PAGES, ROOT, blocks

import remat_cli as remat

ELSEWHERE = {
    "extending.md": "test_docs_python.py",
    "fsdp.md": "frontends/test_torch_fully_sharded.py",
    "jax.md": "jax_frontend",
    "pages.md": "frontends/record_snapshot.py, on a CUDA device",
    "policy.md": "a line of JAX in a text",
    "python.md": "test_docs_python.py, as doctests",
    "sharded.md": "cli/test_cli_sharded.py",
    "tensorflow.md": "tensorflow_frontend",
    "trainer.md": "integrations/test_docs_trainer.py",
}
"""Pages whose blocks other tests run."""
SHOWN = [(page, k) for page in PAGES if page.name not in ELSEWHERE for k in range(len(blocks(page)))]
SHOWN = [(page, k) for page, k in SHOWN if blocks(page)[k].language == "python"]
SHOWN.append((ROOT / "README.md", next(k for k, b in enumerate(blocks(ROOT / "README.md")) if "remat.fit" in b.text)))


def around(text: str) -> dict[str, object]:
    """What a page takes for granted; lengths of sequences differ where the text speaks of them."""
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    if "buckets=" in text:
        model, batch = torch.nn.Sequential(torch.nn.Embedding(100, 64), *layers), torch.randint(0, 100, (2, 256))
    else:
        model, batch = torch.nn.Sequential(*layers), torch.randn(1024, 64)
    criterion = torch.nn.functional.mse_loss
    labels = torch.zeros(*batch.shape[: 2 if "buckets=" in text else 1], 64)
    return {"remat": remat, "model": model, "batch": batch, "labels": labels, "criterion": criterion}


@pytest.mark.parametrize(("page", "k"), SHOWN, ids=[f"{page.stem} {k}" for page, k in SHOWN])
def test_a_block_of_python_runs(page, k, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.compiler.reset()
    text = blocks(page)[k].text
    names = around(text)
    model = names["model"]
    exec(compile(text, f"{page.name}, block {k}", "exec"), names)
    if "remat.fit(" in text and names["model"] is model:
        names["criterion"](names["model"](names["batch"]), names["labels"]).backward()
        assert remat.fitted(model).plan_bytes <= remat.fitted(model).budget_bytes
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_pages_that_others_run_have_blocks():
    assert all(any(b.language == "python" for b in blocks(DOCS / name)) for name in ELSEWHERE)
