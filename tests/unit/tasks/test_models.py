"""The models: stacked against their plain forward, and against PyTorch's own layers."""

import hashlib
import socket
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import feduca
from feduca.core.rng import stream
from feduca.errors import ConfigError, DataError
from feduca.tasks import Dataset, build_task, criterion, models, table
from feduca.tasks.data.batches import AUGMENTATIONS, plan
from feduca.tasks.data.plot import plot
from feduca.tasks.data.pool import Pool, flip_and_crop
from feduca.tasks.engines import Keys
from feduca.tasks.engines.gpu.graphs import AutogradTrainers
from feduca.tasks.metrics import auc, objective
from feduca.tasks.models import CNN, MLP, resnet
from feduca.tasks.models.bilstm import BiLSTM
from feduca.tasks.models.convolution import convolve, live
from feduca.tasks.models.layout import Layout
from feduca.tasks.models.resnet import FILES, ResNet18
from feduca.types import LocalSpec

TINY = ((4, 1), (6, 2))  # widths and strides of a ResNet small enough for a test


def text(n, length=7, words=12, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(2, words, (n, length))
    x[np.arange(length) >= rng.integers(1, length + 1, n)[:, None]] = 0
    return torch.from_numpy(x)


CASES = {
    "mlp": (lambda: MLP(12, (7, 5), 3), torch.randn(4, 6, 12)),
    "logistic": (lambda: MLP(12, (), 3), torch.randn(4, 6, 12)),
    "cnn": (lambda: CNN((3, 18, 16), (9,), 4, filters=5), torch.randn(4, 6, 3, 18, 16)),
    "resnet": (lambda: ResNet18(5, widths=TINY), torch.randn(4, 3, 3, 32, 32)),
    "bilstm": (lambda: BiLSTM(12, 4, 5, 3), text(24).view(4, 6, 7)),
}


def stack(make, K):
    modules = [make() for _ in range(K)]
    layout = Layout.of(modules[0])
    theta = torch.stack([layout.pack(dict(m.named_parameters())) for m in modules]).detach()
    return modules, layout, theta


@pytest.mark.parametrize(("make", "x"), CASES.values(), ids=CASES.keys())
def test_stacked_is_each_model_on_its_own(make, x):
    torch.manual_seed(0)
    modules, layout, theta = stack(make, 4)
    with torch.no_grad():
        together = modules[0].stacked(layout.unpack(theta), x)
        alone = torch.stack([m(x[k]) for k, m in enumerate(modules)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("make", "x"), CASES.values(), ids=CASES.keys())
def test_the_stem_is_affine_in_the_parameters(make, x):
    torch.manual_seed(0)
    modules, layout, a = stack(make, 4)
    b = stack(make, 4)[2]
    model, c = modules[0], 0.3
    with torch.no_grad():
        mixed = model.stem(layout.unpack((1 - c) * a + c * b), x)
        mean = (1 - c) * model.stem(layout.unpack(a), x) + c * model.stem(layout.unpack(b), x)
    torch.testing.assert_close(mixed, mean, rtol=1e-4, atol=1e-5)


def test_the_cnn_has_the_papers_sizes():
    assert sum(p.numel() for p in CNN((3, 32, 32), (394, 192), 10).parameters()) == (
        (75 * 64 + 64) + (1600 * 64 + 64) + (1600 * 394 + 394) + (394 * 192 + 192) + (192 * 10 + 10)
    )
    assert sum(p.numel() for p in MLP(784, (200, 100), 10).parameters()) == 178_110
    assert sum(p.numel() for p in ResNet18(1000).parameters()) == 11_689_512  # torchvision's resnet18, exactly


def test_bilstm_is_pytorchs_lstm():
    torch.manual_seed(0)
    model = BiLSTM(12, 4, 5, 3)
    lstm = nn.LSTM(5, 3, batch_first=True, bidirectional=True)
    state = {}
    for d, suffix in enumerate(("", "_reverse")):
        state[f"weight_ih_l0{suffix}"] = model.inner[d].t()
        state[f"weight_hh_l0{suffix}"] = model.recurrent[d].t()
        state[f"bias_ih_l0{suffix}"] = model.bias[d]
        state[f"bias_hh_l0{suffix}"] = torch.zeros(12)
    lstm.load_state_dict(state)
    x = text(9)
    lengths = (x > 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(model.embedding(x), lengths, batch_first=True, enforce_sorted=False)
    states, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, padding_value=-2.0)
    torch.testing.assert_close(model(x), model.out(states.amax(1)))


@pytest.mark.parametrize("size", [(9, 10), (8, 8), (2, 2), (1, 2), (1, 1)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("stride", "padding", "kernel"), [(1, 0, 5), (1, 1, 3), (2, 1, 3), (2, 3, 7), (2, 0, 1), (1, 0, 1), (3, 1, 1)]
)
def test_im2col_is_conv2d(stride, padding, kernel, size):
    if min(size) + 2 * padding < kernel:
        size = (kernel, kernel)
    torch.manual_seed(0)
    x = torch.randn(2, 3, *size, 4, dtype=torch.double, requires_grad=True)
    w = torch.randn(2, 5, 4, kernel, kernel, dtype=torch.double, requires_grad=True)
    got = convolve(x, w, stride, padding)
    want = torch.stack([F.conv2d(x[k].movedim(3, 1), w[k], None, stride, padding) for k in range(2)]).movedim(2, 4)
    torch.testing.assert_close(got, want)
    d = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, (x, w), d), torch.autograd.grad(want, (x, w), d)):
        torch.testing.assert_close(a, b)


def test_only_taps_that_meet_the_image_are_used():
    assert live(1, 3, 1, 1) == (slice(1, 2), (0, 0))
    assert live(2, 3, 2, 1) == (slice(1, 3), (0, 0))
    assert live(8, 3, 1, 1) == (slice(0, 3), (1, 1))
    assert live(9, 3, 2, 0) == (slice(0, 3), (0, 0))
    assert live(1, 1, 3, 1) == (slice(0, 1), (1, -1))  # no window meets the image


def pictures(n=160, classes=4):
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    x = (rng.integers(0, 120, (n, 16, 16, 3)) + 30 * y[:, None, None, None]).astype(np.uint8)
    return Dataset("tiny", x, y, x[:20], y[:20], classes, tuple("abcd"), np.full(3, 0.4), np.full(3, 0.2))


def words(n=120):
    x, y = text(n).numpy(), np.arange(n) % 4
    return Dataset("words", x, y, x[:20], y[:20], 4, tuple("abcd"), vocabulary=12)


MODELS = {
    "cnn": (pictures(), lambda: CNN((3, 16, 16), (9,), 4, filters=4)),
    "resnet": (pictures(), lambda: ResNet18(4, widths=TINY)),
    "bilstm": (words(), lambda: BiLSTM(12, 4, 5, 3)),
}


@pytest.mark.parametrize(("data", "make"), MODELS.values(), ids=MODELS.keys())
def test_engines_and_the_graph_trainer_agree(data, make):
    """The third engine's steps are those a GPU captures; here they run one by one."""
    spec = LocalSpec(
        epochs=1, batch_size=8, lr=0.05, weight_decay=1e-2, clip=1.0, momentum=0.5, augment=data.name == "tiny"
    )
    got = []
    for kind in ("stacked", "sequential"):
        task = build_task(
            data=data, model=make, clients=3, classes_per_client=4, validation_concentration=9.0, engine=kind
        )
        theta = task.init(0).expand(3, -1)
        rows = [silo.rows["train"][:n] for silo, n in zip(task.members, (5, 11, 17))]
        batches = plan(rows, np.arange(3), spec, 0, np.zeros(3, int))
        got.append(task.engine.train(theta, batches, spec, None, Keys(np.zeros(3, int), 0, np.arange(3))))
        scores = task.evaluate(theta, np.arange(3), "validation")
        along = task.along(theta, got[-1], np.array([[0.0, 1.0]] * 3), np.arange(3), "validation")
        np.testing.assert_allclose(along.loss[:, 0], scores.loss, rtol=1e-4)
    module = task.engine.module
    trainers = AutogradTrainers(module, task.layout, task.pool, task.criterion)
    for _ in range(2):  # the second round reuses the buffers
        third = trainers.train(theta, batches, spec, None)
    torch.testing.assert_close(got[0], got[1], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(third, got[1], rtol=1e-3, atol=1e-5)
    assert len(trainers.made) == 1
    assert (third - theta).abs().amax(1).min() > 1e-4


def test_augmentation_by_hand():
    x = torch.arange(2 * 8 * 8 * 1, dtype=torch.float32).view(2, 8, 8, 1) + 1
    still, flip = torch.tensor([0, 0]), torch.tensor([1, 1])
    assert torch.equal(flip_and_crop(x, still), x)
    assert torch.equal(flip_and_crop(x, flip), x.flip(2))
    code = torch.tensor([2 + 4 * 0 + 36 * 5] * 2)  # crop: window up by 4 rows, right by 1 column
    moved = flip_and_crop(x, code)
    assert torch.equal(moved[:, 4:, :7], x[:, :4, 1:])
    assert not moved[:, :4].any()
    assert not moved[:, :, 7].any()
    codes = stream(0, "augment").integers(AUGMENTATIONS, size=20_000)
    assert abs((codes % 2).mean() - 0.5) < 0.02
    assert abs((codes // 2 % 2).mean() - 0.5) < 0.02
    assert set(np.unique(codes // 4 % 9)) == set(np.unique(codes // 36)) == set(range(9))


def published_state(outputs=1000):
    """A state dict like torchvision's resnet18: BatchNorm statistics and a 1000-class layer included."""
    torch.manual_seed(3)
    state = {}
    for name, value in ResNet18(outputs).state_dict().items():
        if name.startswith("fc."):
            continue
        state[name] = torch.randn_like(value)
        if "bn" in name or "downsample.1" in name:
            state[name.rsplit(".", 1)[0] + ".running_mean"] = torch.zeros(len(value))
    return {**state, "fc.weight": torch.zeros(outputs, 512), "fc.bias": torch.zeros(outputs)}


def test_imagenet_weights_from_the_data_directory(tmp_path):
    data = Dataset(
        "rgb",
        np.zeros((40, 8, 8, 3), np.uint8),
        np.arange(40) % 2,
        np.zeros((4, 8, 8, 3), np.uint8),
        np.zeros(4, int),
        2,
        (),
    )
    settings = {"data": data, "model": "resnet18", "clients": 2, "classes_per_client": 2, "data_dir": str(tmp_path)}
    settings["validation_concentration"] = 9.0
    scratch = build_task(**settings)
    assert scratch.describe()["weights"].startswith("from scratch")
    state = published_state()
    torch.save(state, tmp_path / FILES[0])
    task = build_task(**settings)
    assert task.describe()["weights"] == f"ImageNet ({FILES[0]})"
    entries = task.layout.unpack(task.init(0))
    torch.testing.assert_close(entries["conv1.weight"], state["conv1.weight"])
    torch.testing.assert_close(entries["layer4.1.bn2.bias"], state["layer4.1.bn2.bias"])
    assert entries["fc.weight"].shape == (512, 2)
    del state["layer2.0.conv1.weight"]
    torch.save(state, tmp_path / FILES[0])
    with pytest.raises(DataError, match=r"layer2.0.conv1.weight is missing"):
        build_task(**settings)
    (tmp_path / FILES[0]).write_bytes(b"nonsense")
    with pytest.raises(DataError, match="is not a state dict") as caught:
        build_task(**settings)
    assert "\n" not in str(caught.value)


def test_a_resnet_starts_from_a_file_of_ones_own(tmp_path):
    """A state dict of PyTorch's or of `feduca export`; the last layer is the data's own, and the run says which file it was."""
    from safetensors.torch import save_file

    state = published_state(outputs=3)
    torch.save(state, tmp_path / "mine.pth")
    save_file(state, tmp_path / "mine.safetensors")
    for name in ("mine.pth", "mine.safetensors"):
        make, source = models.factory("resnet18", (3, 8, 8), 2, weights=str(tmp_path / name))
        entries = make().state_dict()
        torch.testing.assert_close(entries["layer3.1.conv2.weight"], state["layer3.1.conv2.weight"])
        assert entries["fc.weight"].shape == (512, 2)
        assert source == f"{name} ({hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()[:12]})"
    with pytest.raises(DataError, match=r"there is no file .*none\.pth"):
        models.factory("resnet18", (3, 8, 8), 2, weights=str(tmp_path / "none.pth"))
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="is not a safetensors file"):
        models.factory("resnet18", (3, 8, 8), 2, weights=str(tmp_path / "bad.safetensors"))
    with pytest.raises(ConfigError, match="only resnet18 starts from a file"):
        build_task(data="digits", weights=str(tmp_path / "mine.pth"))


def test_a_resnet_starts_from_what_export_wrote_of_another(tmp_path):
    """As docs/reproduction.md has it: one silo trains a ResNet on other data, and the shared model is exported."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (60, 8, 8, 3)).astype(np.uint8)
    data = Dataset("rgb", pixels, np.arange(60) % 2, pixels[:4], np.arange(4) % 2, 2, ())
    task = build_task(data=data, model="resnet18", clients=1, classes_per_client=2, validation_concentration=9.0)
    recipe = {"rounds": 1, "local": {"epochs": 1}, "task": {"clients": 1}, "mechanism": {"name": "fedavg"}}
    result = feduca.run(recipe | {"participation": {"rule": "always"}}, task=task, out=tmp_path / "runs")
    feduca.export_models(result.run_dir, tmp_path / "pretrained", task=task)
    make, source = models.factory(
        "resnet18", (3, 32, 32), 5, weights=str(tmp_path / "pretrained" / "global.safetensors")
    )
    trained = task.layout.unpack(torch.as_tensor(result.theta))
    torch.testing.assert_close(make().state_dict()["layer2.1.conv1.weight"], trained["layer2.1.conv1.weight"])
    assert source.startswith("global.safetensors (")


def test_weights_are_part_of_a_recipe_where_the_model_can_start_from_them():
    recipe = feduca.recipe("paper", {"task.model": "resnet18", "task.data": "cifar100"})
    started = recipe.with_settings({"task.weights": "mine.safetensors"})
    assert started.hash() != recipe.hash()
    assert "weights" not in recipe.plain()["task"]
    assert started.with_settings({"task.model": "cnn"}).task.weights is None  # another model starts from its own
    with pytest.raises(ConfigError, match=r"task\.weights is .* with task\.model 'cnn'"):
        feduca.recipe("paper", {"task.weights": "mine.safetensors"})


def test_a_network_that_swallows_packets_is_asked_once_and_not_for_long(tmp_path, monkeypatch):
    asked = []

    class Weights:
        def get_state_dict(self, progress):
            asked.append(socket.getdefaulttimeout())
            raise TimeoutError("timed out")

    models = SimpleNamespace(ResNet18_Weights=SimpleNamespace(IMAGENET1K_V1=Weights()))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(resnet, "_unreachable", [])
    assert resnet.published(tmp_path) is None
    assert resnet.published(tmp_path) is None
    assert asked == [resnet.PATIENCE]
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "cnn"}, r"cnn needs images, not examples of shape \(64,\)"),
        ({"model": "bilstm"}, "bilstm needs text"),
        ({"hidden": [0]}, r"task.hidden is \[0\]"),
        (
            {"model": "logistic", "hidden": [8]},
            r"task.hidden is \[8\] with task.model logistic, whose layers are fixed",
        ),
        ({"data": words(), "model": "mlp", "classes_per_client": 4}, "text needs bilstm"),
        (
            {"data": Dataset("bad", np.zeros((9, 2)), np.arange(9), np.zeros((1, 2)), np.zeros(1, int), 5, ())},
            "training labels run from 0 to 8, but there are 5 classes",
        ),
    ],
)
def test_models_and_data_that_do_not_fit(changes, says):
    with pytest.raises((ConfigError, DataError), match=says):
        build_task(**changes)


def test_recipes_and_models_agree_on_whose_layers_are_fixed():
    from feduca.recipes.schema import FIXED_MODELS

    assert {*FIXED_MODELS, *models.LAYERED} == set(models.NAMES)
    assert not set(FIXED_MODELS) & set(models.LAYERED)


def test_resnet_from_scratch_says_so_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(models, "published", lambda home: None)
    models._tell.cache_clear()
    for _ in range(2):
        assert models.factory("resnet18", (3, 8, 8), 4, data_dir=str(tmp_path))[1].startswith("from scratch")
    (said,) = caplog.messages
    assert said.startswith("resnet18 starts from scratch: no ImageNet weights: resnet18-f37072fd.pth is not in ")
    assert str(tmp_path) in said


def test_read_only_arrays_are_fine():
    x = np.frombuffer(bytes(range(48)), np.uint8).reshape(4, 2, 2, 3)
    pool = Pool.of(x, np.arange(4), mean=np.array([0.1, 0.2, 0.3]), std=np.array([0.5, 0.25, 1.0]))
    assert pool.example_shape == (3, 2, 2)
    image = pool.examples(torch.tensor([2]))[0]
    torch.testing.assert_close(image[1, 0, 1], torch.tensor((x[2, 0, 1, 1] / 255 - 0.2) / 0.25, dtype=torch.float32))
    with pytest.raises(DataError, match="4 examples but 3 labels"):
        Pool.of(x, np.arange(3))


def test_propfair_is_its_formula_and_goes_on_beyond_the_bound():
    spec = LocalSpec(objective="propfair", bound=2.0)
    loss = torch.tensor([0.5, 1.0, 1.6, 3.0], requires_grad=True)
    value = objective(loss, spec)
    torch.testing.assert_close(value[:2], -torch.log(1 - loss[:2] / 2))
    (slope,) = torch.autograd.grad(value.sum(), loss)
    torch.testing.assert_close(slope, torch.tensor([1 / 1.5, 1.0, 2.5, 2.5]))


def test_auc_by_counting_pairs():
    rng = np.random.default_rng(0)
    scores, y = rng.integers(0, 5, 40).astype(float), rng.integers(0, 2, 40)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[y == 1] for b in scores[y == 0]]
    assert auc(scores[:, None], y) == pytest.approx(np.mean(pairs))
    assert np.isnan(auc(scores[:, None], np.ones(40)))


def test_criterion_refuses_what_it_does_not_know():
    with pytest.raises(ConfigError, match=r"task.loss is 'hinge'"):
        criterion("accuracy", "hinge")


def test_plot_writes_png_and_svg(tmp_path):
    counts = table([np.array([0, 1, 2]), np.array([3])], np.array([0, 1, 1, 2]), 3)
    assert counts.tolist() == [[1, 2, 0], [0, 0, 1]]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="needs matplotlib"):
            plot(counts, counts, tmp_path / "split")
        return
    files = plot(counts, counts, tmp_path / "deep" / "split.png", title="a split")
    assert [f.suffix for f in files] == [".png", ".svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()
