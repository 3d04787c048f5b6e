"""A user's own silos."""

import numpy as np
import pytest

from feduca.errors import ConfigError, DataError
from feduca.tasks import build_own_task
from feduca.tasks.data.silos import read_folder
from feduca.types import LocalSpec


def write_csv(path, n, *, split=None, seed=0, header="a,b,label"):
    rng = np.random.default_rng(seed)
    rows = [header + (",split" if split else "")]
    for i in range(n):
        a, b = rng.normal(size=2).round(4)
        rows.append(f"{a},{b},{int(a + b > 0)}" + (f",{split[i % len(split)]}" if split else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture
def silos(tmp_path):
    """Three silos in three formats and sizes, and a global test set."""
    write_csv(tmp_path / "alpha.csv", 60, split=["train", "train", "validation"], seed=1)
    write_csv(tmp_path / "beta" / "train.csv", 17, seed=2)
    write_csv(tmp_path / "beta" / "validation.csv", 9, seed=3)
    write_csv(tmp_path / "beta" / "test.csv", 8, seed=4)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(130, 2)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    np.savez(tmp_path / "gamma.npz", x_train=x[:100], y_train=y[:100], x_validation=x[100:], y_validation=y[100:])
    write_csv(tmp_path / "global-test.csv", 200, seed=6)
    (tmp_path / "README.txt").write_text("not a silo")
    return tmp_path


def test_a_folder_of_silos_trains(silos):
    for kind in ("stacked", "sequential"):
        task = build_own_task(str(silos), hidden=[8], engine=kind)
        assert task.silos == ("alpha", "beta", "gamma")
        assert task.examples.tolist() == [40, 17, 100]
        theta = task.init(0).expand(3, -1)
        spec = LocalSpec(epochs=30, batch_size=16, lr=0.05, optimiser="adam")
        out = task.train(theta, np.arange(3), spec, 0, 0)
        validation = task.evaluate(out, np.arange(3), "validation")
        assert validation.accuracy.min() > 0.8
        test = task.evaluate(out, np.arange(3), "test")
        assert np.isnan(test.accuracy[[0, 2]]).all()
        assert test.accuracy[1] > 0.5
        scores = task.test(out[2])
        assert scores is not None
        assert scores.accuracy[0] > 0.9
        assert task.describe()["examples"]["validation"] == [20, 9, 30]


def test_auc_and_a_function_of_ones_own(silos):
    task = build_own_task(str(silos), model="logistic", metric="auc")
    out = task.train(task.init(0).expand(3, -1), np.arange(3), LocalSpec(epochs=20, batch_size=16, lr=0.5), 0, 0)
    scores = task.evaluate(out, np.arange(3), "validation")
    from sklearn.metrics import roc_auc_score

    silo = task.members[2].rows["validation"]
    weights = task.layout.unpack(out)
    logits = task.pool.x[silo] @ weights["layers.0.weight"][2] + weights["layers.0.bias"][2]
    want = roc_auc_score(task.pool.y[silo].numpy(), (logits[:, 1] - logits[:, 0]).numpy())
    assert scores.accuracy[2] == pytest.approx(want)

    def recall(outputs, targets):
        return float((outputs.argmax(1) == targets)[targets == 1].mean())

    own = build_own_task(str(silos), model="logistic", metric=recall)
    both = own.along(task.init(0).expand(3, -1), out, np.array([[0.0, 1.0]] * 3), np.arange(3), "validation")
    assert both.accuracy.shape == (3, 2)
    assert own.describe()["metric"] == "recall"


def test_regression_from_tables(tmp_path):
    for name, n in (("a", 40), ("b", 25)):
        rng = np.random.default_rng(n)
        lines = ["u,v,y,split"]
        for i in range(n):
            u, v = rng.normal(size=2)
            lines.append(f"{u},{v},{2 * u - v + 0.5},{'validation' if i % 4 == 0 else 'train'}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    task = build_own_task(str(tmp_path), model="logistic", target="y", metric="r2")
    out = task.train(
        task.init(0).expand(2, -1), np.arange(2), LocalSpec(epochs=40, batch_size=8, lr=0.05, momentum=0.5), 0, 0
    )
    assert task.evaluate(out, np.arange(2), "validation").accuracy.min() > 0.99
    with pytest.raises(DataError, match="are not classes"):
        build_own_task(str(tmp_path), target="y")


def test_parquet_if_pyarrow_is_there(tmp_path):
    path = tmp_path / "a.parquet"
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        path.write_bytes(b"")
        with pytest.raises(DataError, match="needs pyarrow"):
            read_folder(tmp_path)
        return
    parquet.write_table(
        arrow.table({"a": [1.0, 2.0, 3.0], "label": [0, 1, 1], "split": ["train", "train", "validation"]}), path
    )
    x, y = read_folder(tmp_path).silos["a"]["train"]
    assert x.tolist() == [[1.0], [2.0]]
    assert y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "holds no silos"),
        ({"a.csv": ""}, "is empty"),
        ({"a.csv": "x,label\n1,0\n"}, "no column split"),
        ({"a.csv": "x,label,split\n1,0,dev\n"}, "'dev' in column split"),
        ({"a.csv": "x,label,split\n1,0,train\n"}, "has no validation data"),
        ({"a.csv": "x,label,split\n1,0,validation\n"}, "has no train data"),
        ({"a.csv": "x,label,split\n1,0\n"}, "line 2 has 2 fields"),
        ({"a.csv": "x,label,split\nred,0,train\n"}, "'red' in column x"),
        ({"a.csv": "x,label,split\nnan,0,train\n"}, "missing or infinite value in column x"),
        ({"a.csv": "x,y,split\n1,0,train\n"}, "no column 'label'"),
        ({"a.csv": "label,split\n0,train\n"}, "only the column 'label'"),
        ({"a.npz": "nonsense"}, "cannot be read"),
        (
            {
                "a.csv": "x,label,split\n1,0,train\n1,1,validation\n",
                "b.csv": "x,z,label,split\n1,1,0,train\n1,1,1,validation\n",
            },
            r"silo b \(train\) has a column 'z', which silo a \(train\) has not",
        ),
        ({"a.csv": "x,label,split\n1,0,train\n1,-1,validation\n"}, "targets such as -1"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(files, says, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises((DataError, ConfigError), match=says) as caught:
        build_own_task(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_not_a_folder(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        read_folder(tmp_path / "nothing")


# What a task of one's own is judged by --------------------------------------------------------------------------------


def write_silos(folder, *, sizes=(12, 11), values=False, features=2):
    """Archives of silos a, b, ... with so many training examples, and 9 to decide by."""
    folder.mkdir(exist_ok=True)
    for i, n in enumerate(sizes):
        rng = np.random.default_rng(i)
        parts = {}
        for part, size in (("train", n), ("validation", 9)):
            x = rng.normal(size=(size, features)).astype(np.float32)
            y = x.sum(1) if values else (x[:, 0] > 0).astype(np.int64)
            parts |= {f"x_{part}": x, f"y_{part}": y}
        np.savez(folder / f"{'abcdef'[i]}.npz", **parts)
    return str(folder)


def refused(folder, kind=ConfigError, **how):
    with pytest.raises(kind) as caught:
        build_own_task(folder, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_scores_that_are_undefined_for_a_silo_are_refused(tmp_path):
    one_class = tmp_path / "one-class"
    folder = write_silos(one_class)
    content = dict(np.load(one_class / "b.npz"))
    np.savez(one_class / "b.npz", **(content | {"y_validation": np.ones(9, np.int64)}))
    assert "silo b (validation): auc needs both classes" in refused(folder, DataError, metric="auc")
    build_own_task(folder, metric="accuracy")
    np.savez(one_class / "b.npz", **(content | {"y_validation": np.full(9, 2)}))
    assert "auc is for two classes" in refused(folder, DataError, metric="auc")
    constant = tmp_path / "constant"
    folder = write_silos(constant, values=True)
    content = dict(np.load(constant / "a.npz"))
    np.savez(constant / "a.npz", **(content | {"y_validation": np.full(9, 1.5)}))
    assert "silo a (validation): r2 needs targets that differ" in refused(folder, DataError, metric="r2")
    one = {"x_validation": content["x_validation"][:1], "y_validation": content["y_validation"][:1]}
    np.savez(constant / "a.npz", **(content | one))
    assert "silo a (validation): r2" in refused(folder, DataError, metric="r2")


def test_labels_with_gaps(tmp_path):
    folder = write_silos(tmp_path)
    content = dict(np.load(tmp_path / "b.npz"))
    np.savez(tmp_path / "b.npz", **(content | {"y_train": content["y_train"] * 1000}))
    assert "the largest label is 1000 (silo b (train))" in refused(folder, DataError)
    np.savez(tmp_path / "b.npz", **(content | {"y_train": content["y_train"] * 7}))
    assert build_own_task(folder).about["classes"] == 8


def fails(outputs, targets):
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda o, y: float("nan"), "returns nan"),
        (lambda o, y: "good", "returns 'good'"),
        (lambda o, y: o.argmax(1) == y, "returns an array of shape (9,)"),
        (lambda o, y: o.argmax(1).float(), "AttributeError"),
        (
            fails,
            "metric 'fails' fails with ZeroDivisionError: division by zero; it is given numpy arrays, outputs [9, 2]",
        ),
    ],
)
def test_a_metric_that_is_no_number_is_named(metric, says, tmp_path):
    assert says in refused(write_silos(tmp_path), metric=metric)


def test_a_metric_that_turns_out_undefined_later_is_named(tmp_path):
    def confident(outputs, targets):
        return float("nan") if np.abs(outputs).max() < 1e-9 else 1.0

    task = build_own_task(write_silos(tmp_path), model="logistic", metric=confident)
    with pytest.raises(ConfigError, match="metric 'confident' returns nan"):
        task.evaluate(np.zeros((2, task.size)), np.arange(2), "validation")


def test_what_functions_of_ones_own_are_given(tmp_path):
    import torch

    seen = {}

    def metric(outputs, targets):
        seen["metric"] = type(outputs), outputs.shape[1], type(targets), targets.ndim
        return -float(np.abs(outputs[:, 0] - targets).mean())

    def loss(outputs, targets):
        seen["loss"] = type(outputs), outputs.shape[1], type(targets), targets.ndim
        return (outputs[:, 0] - targets).abs()

    folder = write_silos(tmp_path, values=True)
    task = build_own_task(folder, model="logistic", metric=metric, loss=loss)
    task.train(task.init(0).expand(2, -1), np.arange(2), LocalSpec(epochs=1, batch_size=4, lr=0.1), 0, 0)
    assert seen == {"metric": (np.ndarray, 1, np.ndarray, 1), "loss": (torch.Tensor, 1, torch.Tensor, 1)}
    assert (task.about["metric"], task.about["loss"]) == ("metric", "loss")
    says = "must return a loss per example"
    assert says in refused(folder, metric="r2", loss=lambda o, y: (o[:, 0] - y).abs().mean())
    assert says in refused(folder, metric="r2", loss=lambda o, y: (o - y).abs())
    assert says in refused(folder, metric="r2", loss=lambda o, y: 1.0)
    assert says in refused(folder, metric="r2", loss=lambda o, y: y.abs())
    assert 'your own metric with loss="squared-error"' in refused(folder, DataError, metric=metric)


@pytest.mark.parametrize(
    ("metric", "loss"), [("accuracy", "squared-error"), ("auc", "squared-error"), ("r2", "cross-entropy")]
)
def test_a_loss_that_does_not_go_with_the_metric(metric, loss, tmp_path):
    assert "does not train for" in refused(write_silos(tmp_path), metric=metric, loss=loss)


def test_a_loss_of_ones_own_for_classes(tmp_path):
    import torch.nn.functional as F

    def smooth(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)

    assert build_own_task(write_silos(tmp_path), metric="accuracy", loss=smooth).about["classes"] == 2


# Modules of one's own -------------------------------------------------------------------------------------------------


def modules():
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self, cell):
            super().__init__()
            self.cell, self.out = cell(1, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.cell(x.unsqueeze(-1))[0][:, -1])

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(2, 2)

        def forward(self, x):
            return self.out(x) if x.sum() > 0 else self.out(2 * x)

    class Item(Flow):
        def forward(self, x):
            return self.out(x / (1 + x.abs().max().item()))

    class Pair(Flow):
        def forward(self, x):
            return self.out(x), x

    def normed():
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    torch.manual_seed(0)
    return {
        "lstm": lambda: Recurrent(nn.LSTM),
        "gru": lambda: Recurrent(nn.GRU),
        "flow": Flow,
        "item": Item,
        "pair": Pair,
        "normed": normed,
        "plain": lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)),
        "words": lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 2)),
    }


SPEC = LocalSpec(epochs=2, batch_size=4, lr=0.1)


def trained(task, spec=SPEC):
    n = len(task.silos)
    return task.train(task.init(0).expand(n, -1), np.arange(n), spec, 0, 0)


@pytest.mark.parametrize("name", ["lstm", "gru", "flow", "item"])
def test_what_cannot_be_stacked_is_trained_one_after_another(name, tmp_path, caplog):
    folder, make = write_silos(tmp_path), modules()[name]
    task = build_own_task(folder, model=make)
    assert task.describe()["engine"]["kind"] == "sequential"
    assert caplog.text.count("silos are trained one after another") == 1
    reference = build_own_task(folder, model=make, engine="sequential")
    assert trained(task).tolist() == trained(reference).tolist()
    assert task.evaluate(trained(task), np.arange(2), "validation").accuracy.shape == (2,)


def test_what_can_be_stacked_is(tmp_path, caplog):
    task = build_own_task(write_silos(tmp_path), model=modules()["plain"])
    assert task.describe()["engine"]["kind"] == "stacked"
    assert not caplog.text


def test_a_model_that_is_none(tmp_path):
    folder = write_silos(tmp_path)
    assert "the model returns a tuple" in refused(folder, model=modules()["pair"])
    assert "model is 3" in refused(folder, model=3)
    assert "returns dict" in refused(folder, model=dict)


def test_batch_norm_leaves_a_last_batch_of_one_out(tmp_path):
    folder = write_silos(tmp_path, sizes=(8, 9))  # 9 = 4 + 4 + 1
    thetas = [
        trained(build_own_task(folder, model=modules()["normed"], engine=kind)) for kind in ("stacked", "sequential")
    ]
    np.testing.assert_allclose(thetas[0], thetas[1], atol=1e-5)
    entries = build_own_task(folder, model=modules()["normed"]).layout.unpack(thetas[0])
    assert entries["1.num_batches_tracked"].tolist() == [4, 4]  # two epochs of two batches for both
    with pytest.raises(ConfigError, match=r"local\.batch_size is 1"):
        trained(build_own_task(folder, model=modules()["normed"]), LocalSpec(epochs=1, batch_size=1, lr=0.1))
    lonely = write_silos(tmp_path / "lonely", sizes=(8, 1))
    assert "silo b has 1 training example" in refused(lonely, DataError, model=modules()["normed"])
    trained(build_own_task(lonely, model=modules()["plain"]))  # others do not mind


def test_hidden_layers_only_where_there_are_some(tmp_path):
    folder = write_silos(tmp_path)
    assert "whose layers are fixed" in refused(folder, model="logistic", hidden=[3])
    assert "beside a model of your own" in refused(folder, model=modules()["plain"], hidden=[3])


def test_images_and_whole_numbers(tmp_path):
    rng = np.random.default_rng(0)

    def write(name, **x):
        (tmp_path / name).mkdir()
        arrays = {f"x_{part}": make(6) for part, make in (("train", x["x"]), ("validation", x["x"]))}
        np.savez(tmp_path / name / "a.npz", **arrays, y_train=[0, 1] * 3, y_validation=[0, 1] * 3)
        return str(tmp_path / name)

    grey = write("grey", x=lambda n: rng.normal(size=(n, 28, 28)).astype(np.float32))
    assert build_own_task(grey, model="cnn").pool.example_shape == (1, 28, 28)
    first = write("first", x=lambda n: rng.normal(size=(n, 3, 32, 32)))
    assert "rows x columns x channels" in refused(first, DataError, model="cnn")
    counts = write("counts", x=lambda n: rng.integers(0, 5, size=(n, 2)))
    trained(build_own_task(counts, model="mlp"))
    trained(build_own_task(counts, model=modules()["plain"]))
    task = build_own_task(counts, model=modules()["words"])
    assert str(task.pool.x.dtype) == "torch.int64"
    trained(task)
