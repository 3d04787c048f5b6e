"""A user's own silos."""

import numpy as np
import pytest

from feduca.errors import ConfigError, DataError
from feduca.tasks import build_own_task
from feduca.tasks.datasets.silos import read_folder
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
