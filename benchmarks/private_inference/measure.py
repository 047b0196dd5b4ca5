"""What a kept ReLU costs when two parties run a network on private data: seconds and bytes,
measured.

In an environment of its own (the engine's numpy is older than the library's), on the folder that
``export.py`` wrote::

    python3.11 -m venv ENVIRONMENT
    ENVIRONMENT/bin/pip install -r benchmarks/private_inference/requirements.txt
    OMP_NUM_THREADS=1 ENVIRONMENT/bin/python benchmarks/private_inference/measure.py FOLDER

Two processes, the server (rank 0) and the client (rank 1), exchange messages through the links of
the engine, SPU, over loopback, with one thread of computation each. The weights are the server's
and the images the client's; architecture and masks are public. Values are fixed-point numbers in a
ring of 64 bits. Two protocols, both against parties that follow them:

``CHEETAH`` Two parties and nobody else: homomorphic encryption for the linear layers, oblivious
    transfer for comparisons and truncations.
``SEMI2K`` Additive shares, and multiplication triples of a dealer whom both trust. Here the server
    plays the dealer, from seeds that it shares with the client (the engine's "trusted first
    party"): dealing takes some of the time and none of the bytes, and the server could read
    everything. So these are the numbers of the online phase of a protocol with a dealer, not of a
    secure protocol of two parties.

What is in ``seconds`` (wall clock, from when both parties are ready until the later one has its
shares of the logits), ``cpu_seconds`` (of both processes together; what else runs on the machine
disturbs them less) and ``bytes_sent`` (by both, as the engine's links count them: contents of
messages, without the frames of RPC, 2 to 5 % more, and of TCP): the encryption or sharing of images
and weights, all layers, and the correlations that are made on the way. Where a run of CHEETAH uses
up its stock of oblivious transfers it makes a new one, enough for about 120,000 ReLUs, which
``ot_extensions`` counts: the mean over many runs has its cost in it, the median over small ones
does not.

What is not: what happens once for two parties (keys, base transfers, the first stock: ``setup`` in
the file of the provenance), compiling, handing private values to their owner's process, and the
opening of the logits, eight bytes each. Loopback adds no latency; on a network each message that
waits for another adds one. ``messages`` counts what both send: a layer costs a fixed number as soon
as it keeps one ReLU.

``units`` is the number of ReLUs before any was made linear, ``relus`` that of those kept, ``kept``
their share. The network of budget 0 is the intercept and the slope in ``relus`` the cost of a ReLU;
seconds, unlike bytes, also jump from no ReLU to a few, by the round trips of every layer that keeps
some. By the engine's own profile, of the slower party, ``linear_seconds`` and ``linear_bytes`` (of
both) are those of convolutions and the last layer, truncation included, ``relu_seconds`` of
comparisons and the products with their bits (and of the scaling in the mean over pixels), and
``indexing_seconds`` of picking the kept positions in layers that keep some ReLUs and not all: local
work without messages, which the engine does element by element.

Each repetition runs every network under both protocols before the next one begins, after one that
does not count, and takes other images than the one before. ``agreement`` is the share of them whose
predicted class is that in the clear, ``max_logit_error`` the largest absolute error of a logit."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import multiprocessing
import os
import platform
import re
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import spu
from spu import libspu
from spu.utils import frontend

PROTOCOLS = ("CHEETAH", "SEMI2K")
SERVER, CLIENT = 0, 1
FRACTION_BITS = 18
EXTENSION_MESSAGES = 1281
"""What one extension of the oblivious transfers sends, in messages; the rest of a run sends
fewer."""

OF_BOTH = ("cpu_seconds", "bytes_sent", "messages", "linear_bytes")
OF_THE_SLOWER = ("seconds", "linear_seconds", "relu_seconds", "indexing_seconds")
COLUMNS = (
    *(
        "network",
        "data",
        "image_size",
        "protocol",
        "batch",
        "budget",
        "units",
        "relus",
        "kept",
        "repetition",
    ),
    *("seconds", "cpu_seconds", "bytes_sent", "messages"),
    *("linear_seconds", "linear_bytes", "relu_seconds", "indexing_seconds", "ot_extensions"),
    *("agreement", "max_logit_error"),
)
SHOWN = ("repetition", "data", "batch", "protocol", "relus", "seconds", "bytes_sent", "agreement")

_OPERATION = re.compile(r"- pphlo\.(.+?), executed \d+ times, duration (\S+)s, send bytes (\d+)")
_TOTAL = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")
_PARTS = {
    "linear": ("convolution", "dot", "dot_general"),
    "relu": ("less", "multiply"),
    "indexing": ("custom_call: spu.gather",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what export.py wrote")
    parser.add_argument(
        "--output", type=Path, default=Path("results/linearization/private-inference.csv")
    )
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument(
        "--batches", nargs="+", type=int, default=[1, 16], help="images that are run together"
    )
    parser.add_argument(
        "--largest", type=int, default=40_000, help="most ReLUs of a batch of several images"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    networks = [Network.read(path) for path in sorted(arguments.folder.glob("*.npz"))]
    jobs = [
        Job(network, batch, compiled(network, batch))
        for batch, network in itertools.product(arguments.batches, networks)
        if batch == 1 or batch * network.about["units"] <= arguments.largest
    ]
    parties = {protocol: Parties(protocol) for protocol in arguments.protocols}
    fullest = min(
        jobs, key=lambda job: (-job.network.about["budget"], job.network.about["units"] * job.batch)
    )
    setup = {protocol: first_use(pair, fullest) for protocol, pair in parties.items()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for repetition in range(-1, arguments.repetitions):
            for job, (protocol, pair) in itertools.product(jobs, parties.items()):
                row = {
                    "protocol": protocol,
                    "repetition": repetition,
                    **measured(pair, job, max(repetition, 0)),
                }
                print(*(f"{name} {row[name]}" for name in SHOWN), sep=", ", flush=True)
                if repetition >= 0:
                    table.writerow(row)
                    file.flush()
    for pair in parties.values():
        pair.close()
    settings = {
        name: value for name, value in vars(arguments).items() if not isinstance(value, Path)
    }
    about = json.dumps({**provenance(), "settings": settings, "setup": setup}, indent=2)
    arguments.output.with_suffix(".json").write_text(about + "\n")


@dataclass(frozen=True)
class Network:
    """A file of ``export.py``.

    Attributes:
        about: The columns of the table that describe it.
        weights: By name of the layer, ``NAME.weight`` and ``NAME.bias``.
        keep: Masks by name of the ReLU, ``(C, H, W)``.
        images: Normalized, ``(N, C, H, W)``.
        logits: In the clear, ``(N, K)``.
    """

    about: dict[str, object]
    weights: dict[str, np.ndarray]
    keep: dict[str, np.ndarray]
    images: np.ndarray
    logits: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Network:
        with np.load(path) as file:
            arrays = dict(file)
        weights = {
            name: value for name, value in arrays.items() if name.endswith((".weight", ".bias"))
        }
        keep = {
            name.removeprefix("keep."): value
            for name, value in arrays.items()
            if name.startswith("keep.")
        }
        about = {name: arrays[name].item() for name in ("network", "data", "image_size", "budget")}
        relus = sum(int(mask.sum()) for mask in keep.values())
        units = sum(mask.size for mask in keep.values())
        about |= {"units": units, "relus": relus, "kept": round(relus / units, 6)}
        return cls(about, weights, keep, arrays["images"], arrays["logits"])

    def forward(self, images: jax.Array, weights: Mapping[str, jax.Array]) -> jax.Array:
        """Normalized images ``(N, C, H, W)`` to logits: a residual network of basic blocks, of the
        public masks."""
        hidden = self.gate("relu", convolution("conv1", images, weights))
        blocks = sorted({name.rsplit(".", 1)[0] for name in self.keep if name != "relu"})
        for block in blocks:
            stride = 2 if block.endswith(".0") and not block.startswith("layer1.") else 1
            inside = self.gate(
                f"{block}.relu1", convolution(f"{block}.conv1", hidden, weights, stride)
            )
            inside = convolution(f"{block}.conv2", inside, weights)
            if f"{block}.downsample.0.weight" in weights:
                hidden = convolution(f"{block}.downsample.0", hidden, weights, stride)
            hidden = self.gate(f"{block}.relu2", inside + hidden)
        return hidden.mean(axis=(2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]

    def gate(self, name: str, values: jax.Array) -> jax.Array:
        """The kept ReLUs of a layer and nothing of the others: picked, compared, and put back by a
        permutation.

        Both are indexings by public positions, for which the parties exchange nothing.
        """
        kept = np.flatnonzero(self.keep[name])
        units = self.keep[name].size
        if len(kept) == 0:
            return values
        if len(kept) == units:
            return jnp.maximum(values, 0)
        flat = values.reshape(len(values), units)
        source = np.arange(units)
        source[kept] = units + np.arange(len(kept))
        both = jnp.concatenate([flat, jnp.maximum(flat[:, kept], 0)], axis=1)
        return both[:, source].reshape(values.shape)


def convolution(
    name: str, inputs: jax.Array, weights: Mapping[str, jax.Array], stride: int = 1
) -> jax.Array:
    """A convolution that keeps the resolution but for its stride, with its bias."""
    kernel = weights[f"{name}.weight"]
    padding = [(size // 2, size // 2) for size in kernel.shape[2:]]
    outputs = jax.lax.conv_general_dilated(inputs, kernel, (stride, stride), padding)
    return outputs + weights[f"{name}.bias"][:, None, None]


def compiled(network: Network, batch: int) -> libspu.Executable:
    """The forward pass for a number of images, as the engine runs it; its inputs are the images and
    every weight."""
    names = ["images", *sorted(network.weights)]  # The order in which jax flattens the arguments.
    secret = [libspu.Visibility.VIS_SECRET] * len(names)
    arguments = (network.images[:batch], network.weights)
    executable, _ = frontend.compile(
        frontend.Kind.JAX, network.forward, arguments, {}, names, secret, lambda outputs: ["output"]
    )
    return executable


@dataclass(frozen=True)
class Job:
    """A network, the number of images it is run on together, and both compiled."""

    network: Network
    batch: int
    executable: libspu.Executable


def measured(pair: Parties, job: Job, repetition: int) -> dict[str, object]:
    """One run: its columns of the table."""
    index = (np.arange(job.batch) + repetition * job.batch) % len(job.network.images)
    logits, row = pair.run(
        job.executable, {"images": job.network.images[index]}, job.network.weights
    )
    clear = job.network.logits[index]
    row["agreement"] = float((logits.argmax(1) == clear.argmax(1)).mean())
    row["max_logit_error"] = float(f"{np.abs(logits - clear).max():.3g}")
    return {**job.network.about, "batch": job.batch, **row}


def first_use(pair: Parties, job: Job) -> dict[str, float]:
    """What the first run of two parties costs beyond the second: keys, base transfers, the first
    stock."""
    first, second = measured(pair, job, 0), measured(pair, job, 0)
    return {
        name: round(first[name] - second[name], 3)
        for name in ("seconds", "cpu_seconds", "bytes_sent", "messages")
    }


class Parties:
    """A server and a client under one protocol: two processes and the link between them, until they
    are closed."""

    def __init__(self, protocol: str):
        context = multiprocessing.get_context("spawn")
        self._io = spu.Io(2, configuration(protocol))
        self._folder = tempfile.TemporaryDirectory()
        self._ends, self._processes = [], []
        addresses = _free_addresses(2)
        for rank in (SERVER, CLIENT):
            here, there = context.Pipe()
            log = os.path.join(self._folder.name, f"{rank}.log")
            process = context.Process(
                target=party, args=(rank, addresses, protocol, log, there), daemon=True
            )
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def run(
        self,
        executable: libspu.Executable,
        client: Mapping[str, np.ndarray],
        server: Mapping[str, np.ndarray],
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Run an executable on private values of the client and of the server.

        Returns:
            Its output, and the columns of the table that the parties know.
        """
        private = [(name, value, CLIENT) for name, value in client.items()]
        private += [(name, value, SERVER) for name, value in server.items()]
        # A value of a known owner is handed over as it is, and to the other party as zeros.
        shares = {
            name: self._io.make_shares(v, libspu.Visibility.VIS_SECRET, owner)
            for name, v, owner in private
        }
        for rank, end in enumerate(self._ends):
            end.send((executable, {name: share[rank] for name, share in shares.items()}))
        outputs, profiles = zip(*(end.recv() for end in self._ends), strict=True)
        slower = max(profiles, key=lambda profile: profile["seconds"])
        row = {name: sum(profile[name] for profile in profiles) for name in OF_BOTH}
        row |= {name: slower[name] for name in OF_THE_SLOWER}
        row = {name: round(value, 6) for name, value in row.items()}
        row["ot_extensions"] = row["messages"] // EXTENSION_MESSAGES
        return self._io.reconstruct(list(outputs)), row

    def close(self) -> None:
        for end in self._ends:
            end.send(None)
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def party(rank: int, addresses: Sequence[str], protocol: str, log: str, end: Connection) -> None:
    """One of two processes: joins the link, then runs what it is sent until that is None."""
    options = libspu.logging.LogOptions()
    options.enable_console_logger = False
    options.system_log_path = log
    libspu.logging.setup_logging(options)
    description = libspu.link.Desc()
    description.recv_timeout_ms = 600_000
    for other, address in enumerate(addresses):
        description.add_party(f"party{other}", address)
    link = libspu.link.create_brpc(description, rank)
    runtime = spu.Runtime(link, configuration(protocol))
    end.send("ready")
    with open(log) as profile:
        for executable, values in iter(end.recv, None):
            for name, value in values.items():
                runtime.set_var(name, value)
            profile.seek(0, os.SEEK_END)
            link.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            runtime.run(executable)
            times = {
                "seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
            }
            end.send((runtime.get_var("output"), {**times, **read_profile(profile.read())}))
    link.stop_link()


def read_profile(text: str) -> dict[str, float]:
    """What one party's engine reports of a run: bytes and messages sent, and the share of some
    operations."""
    (sent, messages), *others = _TOTAL.findall(text)
    if others:
        raise RuntimeError("the engine reported several runs at once")
    operations = [
        (name, float(seconds), int(size)) for name, seconds, size in _OPERATION.findall(text)
    ]
    seconds = {
        f"{part}_seconds": sum(seconds for name, seconds, _ in operations if name in names)
        for part, names in _PARTS.items()
    }
    linear = sum(size for name, _, size in operations if name in _PARTS["linear"])
    return {"bytes_sent": int(sent), "messages": int(messages), "linear_bytes": linear, **seconds}


def configuration(protocol: str) -> libspu.RuntimeConfig:
    """Fixed point in 64 bits, one thread, values of one party kept as they are by that party,
    profile to the log."""
    config = libspu.RuntimeConfig(
        protocol=getattr(libspu.ProtocolKind, protocol), field=libspu.FieldType.FM64
    )
    config.fxp_fraction_bits = FRACTION_BITS
    config.max_concurrency = 1
    config.experimental_enable_colocated_optimization = True
    config.enable_pphlo_profile = True
    config.beaver_type = libspu.RuntimeConfig.BeaverType.TrustedFirstParty
    return config


def provenance() -> dict[str, object]:
    """What the numbers were computed with."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("spu", "jax", "jaxlib", "numpy")},
        },
        "link": "two processes on one machine, loopback, no latency or limit of bandwidth added",
        "field": "FM64",
        "fraction_bits": FRACTION_BITS,
        "threads_per_party": 1,
        "beaver_type_of_semi2k": "TrustedFirstParty",
        "weights": "private to the server",
        "images": "private to the client",
    }


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]
    for opened in sockets:
        opened.close()
    return addresses


if __name__ == "__main__":
    main()
