"""Units, compose files, manifests and bundles: judged by the programs and schemas that they are for."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from feduca._version import __version__
from feduca.cli.main import app
from feduca.errors import ConfigError, RunError
from feduca.flower import folder as folders
from feduca.flower import policy
from feduca.flower.install import bundle, kubernetes
from feduca.flower.install.places import PLACE, PROGRAM

EXAMPLE = Path(__file__).parents[3] / "examples" / "hospitals"
SECRETS = ("ca/ca.key", "server/server.key", "silos/north/key", "silos/South_2.b/key")


def init(place: Path, *more: str) -> Path:
    arguments = ("--app", str(EXAMPLE / "app"), "--silos", "north,South_2.b", "--address", "fed.example.org:8444")
    data = ("--config", "north.data=/srv/the data/north.csv", "--config", "server.test=/srv/test.csv")
    done = CliRunner().invoke(
        app,
        ["deploy", "init", str(place), str(EXAMPLE / "recipe.toml"), *arguments, *data, *more],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    return place


def written(place: Path) -> dict[str, str]:
    """What `--for` and `--bundle` added, as text."""
    suffixes = (".service", ".yaml", ".sh", ".txt")
    found = [*place.glob("server/*"), *place.glob("silos/*/*"), *place.glob("bundle/*")]
    return {
        str(path.relative_to(place)): path.read_text() for path in found if path.suffix in suffixes and path.is_file()
    }


def holds_no_secret(place: Path) -> None:
    keys = ["".join((place / name).read_text().splitlines()[1:-1]) for name in SECRETS]
    for name, text in written(place).items():
        assert not any(key[:60] in text.replace("\n", "") for key in keys), name
    for name in SECRETS:
        assert (place / name).stat().st_mode & 0o077 == 0


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_units_are_good_and_keep_a_program_small(tmp_path):
    place = init(tmp_path / "d", "--for", "systemd")
    holds_no_secret(place)
    units = [place / "server/feduca-server.service", *sorted(place.glob("silos/*/feduca-silo-*.service"))]
    assert [unit.name for unit in units[1:]] == ["feduca-silo-South_2.b.service", "feduca-silo-north.service"]
    for unit in units:
        said = directives(unit)
        assert said["User"] == ["feduca"]
        assert said["Restart"] == ["always"]
        assert said["ProtectSystem"] == ["strict"]
        assert said["MemoryMax"]
        assert said["ExecStart"][0].startswith(f"{PROGRAM} deploy ")
        name = unit.parent.name
        assert said["ExecStart"][0].endswith(f" {PLACE}/{name}")
        if name == "server":  # its programs write beside what they read
            assert said["StateDirectory"] == ["feduca/server"]
            fixed = {path.removeprefix("-") for path in said["ReadOnlyPaths"][0].split()}
            given = {f"{PLACE}/server/{path.name}" for path in unit.parent.iterdir()}
            assert fixed == given | {f"{PLACE}/server/bundle", f"{PLACE}/server/venv"}
        else:  # neither unit, key, policy, approvals nor peers, nor anything new beside them
            assert said["StateDirectory"] == [f"feduca/{name}/state"]
            assert "ReadWritePaths" not in said
            assert f"NUMBA_CACHE_DIR={PLACE}/{name}/state/cache" in said["Environment"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze to judge the units")
    for unit in units:
        there = tmp_path / unit.name
        there.write_text(unit.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("feduca"))))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", there], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", "--no-pager", there]
        done = subprocess.run(command, capture_output=True, text=True)  # exposure of 2.5 of 10, at most
        assert done.returncode == 0, done.stdout


def test_compose_files_are_good_and_publish_one_port(tmp_path):
    place = init(tmp_path / "d", "--for", "compose")
    holds_no_secret(place)
    assert 'bind = "0.0.0.0"' in (place / "server/server.toml").read_text()
    for path in (place / "server", place / "silos/north", place / "silos/South_2.b"):
        tree = yaml.safe_load((path / "compose.yaml").read_text())
        one = tree["services"]["feduca"]
        assert (path / one["build"]["context"] / one["build"]["dockerfile"]).is_file()
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["user"] == "10001:10001"
        assert one["mem_limit"]
        ports = ["8444:8444", "127.0.0.1:9464:9464"] if path.name == "server" else []
        assert one.get("ports", []) == ports
        (writable,) = [(v["source"], v["target"]) for v in one["volumes"] if not v["read_only"]]
        home = f"{PLACE}/{path.name}"
        assert writable == ("./state", home if path.name == "server" else f"{home}/state")
        assert (path / "state").is_dir()
        assert one["command"][-1] == home
        sources = [v["source"] for v in one["volumes"] if v["source"].startswith("./")]
        assert all((path / source).exists() for source in sources)
        assert path.name != "server" or not {"./", "./compose.yaml", "./bundle"} & set(sources)
    north = yaml.safe_load((place / "silos/north/compose.yaml").read_text())["services"]["feduca"]
    assert north["volumes"][-1]["source"] == "/srv/the data/north.csv"
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("there is no docker-compose to judge the files")
    for path in (place / "server", place / "silos/north", place / "silos/South_2.b"):
        done = subprocess.run([program, "-f", path / "compose.yaml", "config"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_manifests_are_good_and_their_pods_have_no_rights(tmp_path):
    place = init(tmp_path / "d", "--for", "kubernetes")
    holds_no_secret(place)
    documents = []
    for path in (place / "server", place / "silos/north", place / "silos/South_2.b"):
        kustomization = yaml.safe_load((path / "kustomization.yaml").read_text())
        assert all((path / name).is_file() for name in kustomization["resources"])
        made = kustomization["secretGenerator"] + kustomization.get("configMapGenerator", [])
        assert all((path / file).is_file() for one in made for file in one["files"])
        private = {file for one in kustomization["secretGenerator"] for file in one["files"]}
        settings = {"silo.toml", "policy.toml", "approved.fab", "key", "key.pub", "ca.crt"}  # which may hold passwords
        assert private == ({"server.toml", "server.key", "server.crt", "ca.crt"} if path.name == "server" else settings)
        here = list(yaml.safe_load_all((path / "kubernetes.yaml").read_text()))
        documents += here
        pod = here[0]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod["initContainers"], *pod["containers"]]:
            guard = container["securityContext"]
            assert guard["readOnlyRootFilesystem"] is True
            assert guard["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
        volumes = {volume["name"] for volume in pod["volumes"]} | {"folder"}
        mounts = {m["name"] for c in [*pod["initContainers"], *pod["containers"]] for m in c["volumeMounts"]}
        assert mounts == volumes
        named = {one["name"] for one in made}
        assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} <= named
        assert {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v} <= named
    judge = pytest.importorskip("kubernetes_validate", reason="there are no schemas to judge the manifests")
    for document in documents:
        judge.validate(document, judge.latest_version(), strict=True)


def test_a_silos_policy_and_peers_come_with_its_pod(tmp_path):
    """As the kubelet mounts them: what the operator forbids is forbidden there, and nothing in the pod can change it."""
    silo = init(tmp_path / "d", "--for", "kubernetes") / "silos/north"
    assert policy.read(silo) == policy.Policy()  # as written, it says nothing
    (silo / "policy.toml").write_text("veto = true\n")
    assert "policy.toml" not in kubernetes.silo(folders.read_silo(silo))  # is not written anew
    made = yaml.safe_load((silo / "kustomization.yaml").read_text())
    files = {one["name"]: one["files"] for one in made["secretGenerator"] + made["configMapGenerator"]}
    assert files["feduca-silo-north-peers"] == ["peers/South_2.b.pub"]
    (document, *_) = yaml.safe_load_all((silo / "kubernetes.yaml").read_text())
    pod = document["spec"]["template"]["spec"]
    kinds = {
        v["name"]: v.get("secret", {}).get("secretName") or v.get("configMap", {}).get("name") for v in pod["volumes"]
    }
    here = tmp_path / "pod"
    for mount in pod["containers"][0]["volumeMounts"]:
        if mount["name"].startswith("given"):
            assert mount["readOnly"] is True
            target = here / Path(mount["mountPath"]).relative_to(f"{PLACE}/north")
            for file in files[kinds[mount["name"]]]:
                if mount.get("subPath") in (None, Path(file).name):
                    place = target if "subPath" in mount else target / Path(file).name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(silo / file, place)
    assert policy.read(here).veto is True
    assert (here / "peers/South_2.b.pub").read_bytes() == (silo / "peers/South_2.b.pub").read_bytes()
    init_container = pod["initContainers"][0]["command"][-1]
    assert "peers" not in init_container  # a copy could be written


def test_a_pods_folder_is_what_was_applied_last(tmp_path):
    """What the operator approved in the pod stays until something else is applied; a key that is given no more goes."""
    place = init(tmp_path / "d", "--for", "kubernetes")
    for path, parts in ((place / "server", ("main", "keys", "app")), (place / "silos/north", ("main",))):
        (document, *_) = yaml.safe_load_all((path / "kubernetes.yaml").read_text())
        script = document["spec"]["template"]["spec"]["initContainers"][0]["command"][-1]
        here, given = tmp_path / "pod" / path.name, tmp_path / "given" / path.name
        here.mkdir(parents=True)
        for part in parts:
            source = path if part == "main" else path / part
            (given / part).mkdir(parents=True)
            for file in source.iterdir():
                if file.is_file() and file.suffix not in (".sh", ".yaml"):
                    shutil.copy(file, given / part / file.name)
        script = script.replace(f"cd {PLACE}/{path.name}", f"cd {here}").replace("/given/", f"{given}/")
        script = script.replace(f".{given}/", ".given/")

        def take(script=script):
            subprocess.run(["/bin/sh", "-c", script], check=True)

        take()
        if path.name == "server":
            assert (here / "server.key").stat().st_mode & 0o077 == 0
            assert (here / "keys" / "north.pub").read_bytes() == (path / "keys" / "north.pub").read_bytes()
            assert (here / "app" / "deployed.py").is_file()
            (here / "keys" / "late.pub").write_text("by hand")
            (given / "keys" / "north.pub").unlink()
            take()
            assert not (here / "keys" / "north.pub").exists()
            assert (here / "keys" / "late.pub").exists()
        else:
            (here / "silo.toml").write_text("approved in the pod")
            take()
            assert (here / "silo.toml").read_text() == "approved in the pod"
            (given / "main" / "silo.toml").write_text("applied anew")
            take()
            assert (here / "silo.toml").read_text() == "applied anew"


def test_one_more_silo_gets_what_the_others_have(tmp_path):
    place = init(tmp_path / "d", "--for", "systemd", "--bundle", "wheel")
    assert CliRunner().invoke(app, ["deploy", "add", str(place), "west"]).exit_code == 0
    assert (place / "silos/west/feduca-silo-west.service").is_file()
    assert (place / "silos/west/bundle/install.sh").samefile(place / "bundle/install.sh")
    assert not (place / "silos/west/compose.yaml").exists()


def test_what_is_not_known_is_refused_before_anything_is_written(tmp_path):
    for words in (("--for", "nomad"), ("--bundle", "half")):
        with pytest.raises(ConfigError, match=f"{words[0]} is '{words[1]}'"):
            init(tmp_path / "d", *words)
        assert not (tmp_path / "d").exists()


# Bundles -------------------------------------------------------------------------------------------------------------


def test_the_wheel_is_what_runs_here_and_always_the_same(tmp_path):
    import feduca

    (tmp_path / "again").mkdir()
    made, again = bundle.wheel(tmp_path), bundle.wheel(tmp_path / "again")
    assert made.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(made) as archive:
        rows = list(csv.reader(archive.read(f"feduca-{__version__}.dist-info/RECORD").decode().splitlines()))
        assert {row[0] for row in rows} == set(archive.namelist())
        for name, digest, _ in rows[:-1]:
            seen = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            assert digest == f"sha256={seen}"
        here = Path(feduca.__file__).parent
        for name in ("feduca/flower/front.py", "feduca/report/assets/list.js"):
            assert archive.read(name) == (here.parent / name).read_bytes()
        assert not any("__pycache__" in name for name in archive.namelist())


def test_a_changed_file_is_noticed_before_anything_is_installed(tmp_path):
    place = init(tmp_path / "d", "--bundle", "wheel")
    wheel = place / "silos/north/bundle" / f"feduca-{__version__}-py3-none-any.whl"
    content = wheel.read_bytes()
    wheel.unlink()  # a link of the others'
    wheel.write_bytes(content + b"!")
    done = subprocess.run([place / "silos/north/bundle/install.sh"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr
    assert not (place / "silos/north/venv").exists()


@pytest.mark.parametrize("planted", ["subprocess.py", "venv.py", "pip/__main__.py", ".hidden", "sitecustomize.py"])
def test_what_no_checksum_covers_is_neither_run_nor_left_there(tmp_path, planted):
    place = init(tmp_path / "d", "--bundle", "wheel") / "silos/north/bundle"
    (place / planted).parent.mkdir(exist_ok=True)
    (place / planted).write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    done = subprocess.run([place / "install.sh"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{place / planted.partition('/')[0]} is not listed in SHA256SUMS; remove it" in done.stderr
    assert not (tmp_path / "mark").exists()
    assert not (place.parent / "venv").exists()


def test_nothing_of_the_bundles_folder_is_imported(tmp_path):
    """Even where it is listed, as in a bundle whose sums were made anew."""
    place = init(tmp_path / "d", "--bundle", "wheel") / "silos/north/bundle"
    for name in ("subprocess.py", "venv.py", "pip.py", "ensurepip.py"):
        (place / name).write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
        with (place / "SHA256SUMS").open("a") as file:
            file.write(f"{hashlib.sha256((place / name).read_bytes()).hexdigest()}  {name}\n")
    script = place / "install.sh"
    words = script.read_text()
    stop = words[: words.index('"$venv/bin/python" -I -m pip install')] + '"$venv/bin/python" -I -m pip --version\n'
    script.unlink()
    script.write_text(stop)  # no index is asked
    sums = (place / "SHA256SUMS").read_text().splitlines()
    sums = [line for line in sums if not line.endswith("  install.sh")]
    sums.append(f"{hashlib.sha256(script.read_bytes()).hexdigest()}  install.sh")
    (place / "SHA256SUMS").unlink()
    (place / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    done = subprocess.run(
        ["/bin/sh", script], capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pip ")
    assert not (tmp_path / "mark").exists()


def test_versions_are_those_that_are_installed_here():
    found = dict(bundle.closure("flower"))
    assert found["flwr"].startswith("1.41.")
    assert {"numpy", "torch", "grpcio", "prometheus-client"} <= found.keys()
    assert "feduca" not in found
    assert "pytest" not in found


def test_an_index_that_has_not_got_them_is_one_line(tmp_path):
    with pytest.raises(
        RunError, match=r"pip cannot fetch the wheels \(ERROR: .*; make the full bundle where pip reaches"
    ):
        bundle._download(tmp_path, ["no-such-package==0"])


def emptied(place: Path) -> Path:
    """A virtual environment that has what feduca needs, and no feduca: what an index would have given."""
    venv.create(place, with_pip=True)
    packages = next(place.glob("lib/python*/site-packages"))
    (packages / "needed.pth").write_text(f"{next(Path(sys.prefix).glob('lib/python*/site-packages'))}\n")
    return place / "bin" / "python"


@pytest.mark.slow
def test_the_wheel_installs_into_an_empty_environment(tmp_path):
    made, python = bundle.wheel(tmp_path), emptied(tmp_path / "venv")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", made], check=True, env=env)
    code = "import feduca, sys; print(feduca.__file__); feduca.allocate(zeta=[[1., 1.2, .2]], gamma=[.4], s=[1.])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.stdout.startswith(str(tmp_path / "venv")), done.stderr
    done = subprocess.run([python.with_name("feduca"), "--version"], capture_output=True, text=True, env=env)
    assert __version__ in done.stdout
