"""Manifests for `kubectl apply -k FOLDER`: keys, settings (which may hold passwords) and the policy come as a Secret made from
the folder's own files, public keys and the server's app as ConfigMaps.

What programs write is on a volume of the pod's own. What is applied anew replaces what was applied before; what a silo's operator
approved in the pod stays until then.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from feduca._version import __version__
from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.install.places import PLACE, USER, environment, paths

POLICY = "# What this silo's operator allows, whatever the server asks (docs/silo.md). Then: kubectl apply -k .\n"
PEERS = "peers"  # whose keys a silo believes: mounted, not copied

# Copies what was given, where it is other than what was given last, and removes what is given no more.
TAKE = """set -eu
umask 077
cd {home}
mkdir -p state
for part in {parts}; do
  to=$part
  if [ $part = main ]; then to=.; fi
  mkdir -p .given/$part $to
  for file in /given/$part/*; do
    name=$(basename "$file")
    if ! cmp -s "$file" ".given/$part/$name" || ! [ -e "$to/$name" ]; then
      cp -L "$file" "$to/$name"
      cp -L "$file" ".given/$part/$name"
    fi
  done
  for file in .given/$part/*; do
    name=$(basename "$file")
    if ! [ -e "/given/$part/$name" ]; then rm -f ".given/$part/$name" "$to/$name"; fi
  done
done
"""


def server(server: ServerFolder) -> dict[str, str]:
    """The folder's `out` is on the pod's volume; test data come from the claim feduca-server-data."""
    ports = {"fleet": server.port}
    if server.operate.metrics is not None:
        ports["metrics"] = server.operate.metrics[1]
    given = {
        "": ["server.toml", "server.crt", "server.key", "ca.crt"],
        "keys": sorted(f"keys/{path.name}" for path in (server.path / "keys").glob("*.pub")),
        "app": sorted(f"app/{path.name}" for path in (server.path / "app").iterdir() if path.is_file()),
    }
    data = paths({key: value for key, value in server.settings.items() if key != "out"})
    command = ["deploy", "superlink", "--run", f"{PLACE}/server"]
    workload = _workload("feduca-server", "server", command, given, data, ports)
    listed = "".join(
        f"    - name: {name}\n      port: {port}\n      targetPort: {name}\n" for name, port in ports.items()
    )
    service = f"""---
apiVersion: v1
kind: Service
metadata:
  name: feduca-server
spec:
  # Silos connect to the port "fleet" with TLS of our own: pass it through (LoadBalancer, NodePort), end no TLS before it.
  type: ClusterIP
  selector:
    app.kubernetes.io/instance: feduca-server
  ports:
{listed}"""
    incoming = f"    - ports:\n        - port: {server.port}\n" + "".join(
        f"    - from:\n        - namespaceSelector:\n            matchLabels:\n"
        f"              kubernetes.io/metadata.name: monitoring\n      ports:\n        - port: {port}\n"
        for name, port in ports.items()
        if name == "metrics"
    )
    policy = _policy("feduca-server", incoming, "")
    return {
        "kustomization.yaml": _kustomization("feduca-server", given),
        "kubernetes.yaml": workload + service + policy,
    }


def silo(silo: SiloFolder) -> dict[str, str]:
    """Its data come from a claim of its own, mounted where silo.toml says that they are."""
    name = f"feduca-silo-{re.sub(r'[^a-z0-9]+', '-', silo.name.lower()).strip('-')}"
    given = {"": ["silo.toml", "policy.toml", "approved.fab", "key", "key.pub", "ca.crt"]}
    home = f"{PLACE}/{silo.name}"
    fixed = _fixed("given", f"{home}/policy.toml", "policy.toml")
    if peers := sorted(f"{PEERS}/{path.name}" for path in (silo.path / PEERS).glob("*.pub")):
        given[PEERS] = peers
        fixed += _fixed(f"given-{PEERS}", f"{home}/{PEERS}")
    workload = _workload(name, silo.name, ["deploy", "silo", home], given, paths(silo.config), {}, fixed)
    outgoing = (
        f"    - ports:\n        - port: {silo.server[1]}\n    - ports:\n        - port: 53\n          protocol: UDP\n"
    )
    policy = _policy(name, "", outgoing + "        - port: 53\n")
    made = {"kustomization.yaml": _kustomization(name, given), "kubernetes.yaml": workload + policy}
    return made if (silo.path / "policy.toml").exists() else {**made, "policy.toml": POLICY}


def _fixed(volume: str, place: str, part: str = "") -> str:
    """A mount that nobody in the pod can write."""
    return (
        f"            - name: {volume}\n              mountPath: {json.dumps(place)}\n"
        + f"              subPath: {part}\n" * bool(part)
        + "              readOnly: true\n"
    )


def _kustomization(name: str, given: dict[str, list[str]]) -> str:
    """The folder's own files as a Secret, those of folders in it as ConfigMaps; a change of one of them starts the pod anew."""

    def generator(kind: str, files: list[str]) -> str:
        return f"  - name: {kind}\n    files:\n" + "".join(f"      - {json.dumps(file)}\n" for file in files)

    maps = "".join(generator(f"{name}-{part}", files) for part, files in given.items() if part)
    maps = f"configMapGenerator:\n{maps}" * bool(maps)
    return f"""# `kubectl apply -k .` in this folder (docs/install-kubernetes.md).
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [kubernetes.yaml]
secretGenerator:
{generator(name, given[""])}{maps}"""


def _workload(
    name: str,
    place: str,
    command: list[str],
    given: dict[str, list[str]],
    data: list[str],
    ports: dict[str, int],
    fixed: str = "",
) -> str:
    home = f"{PLACE}/{place}"
    take = TAKE.format(home=home, parts=" ".join(part or "main" for part in given if part != PEERS))
    variables = "".join(
        f"            - name: {key}\n              value: {json.dumps(value)}\n"
        for key, value in environment(home).items()
    )
    own = f"            - name: folder\n              mountPath: {json.dumps(home)}\n"
    temporary = '            - name: temporary\n              mountPath: "/tmp"\n'
    handed = "".join(
        f"            - name: given{f'-{part}' * bool(part)}\n              mountPath: /given/{part or 'main'}\n"
        "              readOnly: true\n"
        for part in given
        if part != PEERS
    )
    folders = sorted({str(PurePosixPath(path).parent) for path in data} - {"/"})
    files = "".join(
        f"            - name: data\n              mountPath: {json.dumps(path)}\n              readOnly: true\n"
        for path in folders
    )
    claim = (
        f"        - name: data\n          persistentVolumeClaim:\n            claimName: {name}-data\n"
        "            readOnly: true\n"
    )
    parts = "".join(
        f"        - name: given-{part}\n          configMap:\n            name: {name}-{part}\n"
        for part in given
        if part
    )
    listed = "".join(
        f"            - name: {what}\n              containerPort: {port}\n" for what, port in ports.items()
    )
    first = next(iter(ports), None)
    probes = (
        ""
        if first is None
        else "          ports:\n"
        + listed
        + "".join(
            f"          {probe}:\n            tcpSocket:\n              port: {first}\n            periodSeconds: 20\n"
            f"            failureThreshold: {often}\n"
            for probe, often in (("readinessProbe", 1), ("livenessProbe", 3), ("startupProbe", 20))
        )
    )  # /health is for people: a pod that is not ready would be cut off from the silos it waits for
    guard = (
        "          securityContext:\n            allowPrivilegeEscalation: false\n            readOnlyRootFilesystem: true\n"
        '            capabilities:\n              drop: ["ALL"]\n'
    )
    return f"""apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: feduca
    app.kubernetes.io/instance: {name}
spec:
  replicas: 1
  serviceName: {name}
  selector:
    matchLabels:
      app.kubernetes.io/instance: {name}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: feduca
        app.kubernetes.io/instance: {name}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 30
      securityContext:
        runAsNonRoot: true
        runAsUser: {USER}
        runAsGroup: {USER}
        fsGroup: {USER}
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile:
          type: RuntimeDefault
      initContainers:
        - name: folder
          image: "feduca:{__version__}"
          command: ["/bin/sh", "-c", {json.dumps(take)}]
          resources:
            requests: {{cpu: 50m, memory: 64Mi}}
            limits: {{memory: 256Mi}}
          volumeMounts:
{own}{handed}{guard}      containers:
        - name: feduca
          image: "feduca:{__version__}"
          args: {json.dumps(command)}
          env:
{variables}          resources:
            requests: {{cpu: 500m, memory: 1Gi}}
            limits: {{memory: 8Gi}}
{probes}          volumeMounts:
{own}{fixed}{temporary}{files}{guard}      volumes:
        - name: temporary
          emptyDir: {{sizeLimit: 1Gi}}
        - name: given
          secret:
            secretName: {name}
{parts}{claim if folders else ""}  volumeClaimTemplates:
    - metadata:
        name: folder
      spec:
        accessModes: [ReadWriteOnce]
        resources:
          requests:
            storage: 20Gi
"""


def _policy(name: str, incoming: str, outgoing: str) -> str:
    """Who may connect: nobody but whom the ports are for, and a silo to its server alone."""
    kinds = ["Ingress", *(["Egress"] if outgoing else [])]
    return f"""---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {name}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/instance: {name}
  policyTypes: {json.dumps(kinds)}
  ingress:{" []" if not incoming else ""}
{incoming}{"  egress:" + chr(10) + outgoing if outgoing else ""}"""
