"""T5X's checkpoints, legacy and Orbax: bit-exact, parameters only, and errors in a sentence."""

import dataclasses
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from specdec_jax import checkpoints
from specdec_jax.checkpoints import load_config, load_params
from specdec_jax.stored import flat
from specdec_jax.t5 import T5Config

from .t5x_format import GARBAGE, write_legacy

CONFIG = T5Config(
    vocab_size=40, emb_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=2,
    head_dim=3, mlp_dim=12,
)  # fmt: skip


def random_params(config=CONFIG):
    rng = np.random.default_rng(0)
    shapes = checkpoints.expected_params(config)
    return jax.tree.map(lambda s: rng.standard_normal(s.shape).astype(np.float32), shapes)


PARAMS = random_params()


def assert_same(got, want, dtype=None):
    got, want = flat(got), flat(want)
    assert got.keys() == want.keys()
    for name, leaf in want.items():
        assert got[name].dtype == jnp.dtype(dtype or leaf.dtype), name
        np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(leaf, got[name].dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_round_trip_through_zarr_is_exact(tmp_path, golden, dtype):
    config, params, _ = golden
    params = jax.tree.map(lambda x: np.asarray(x).astype(jnp.dtype(dtype)), params)
    folder = write_legacy(tmp_path / "checkpoint_7", params)
    told, kept = load_params(folder, dtype=None)
    assert told == dataclasses.replace(config, dropout_rate=0.0)
    assert_same(kept, params, dtype)
    assert_same(load_params(folder)[1], params, "float32")
    assert_same(load_params(folder, dtype="bfloat16")[1], params, "bfloat16")


@pytest.mark.parametrize("form", ["gfile", "path", "gcs"])
def test_every_form_of_the_index(tmp_path, form):
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS, form=form, chunk=7)
    assert_same(load_params(folder)[1], PARAMS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("inline", [lambda name: True, lambda name: "decoder" in name])
def test_a_round_trip_through_the_index_is_exact(tmp_path, dtype, inline):
    params = jax.tree.map(lambda x: x.astype(jnp.dtype(dtype)), PARAMS)
    folder = write_legacy(tmp_path / "checkpoint_7", params, inline=inline)
    assert_same(load_params(folder, dtype=None)[1], params, dtype)
    assert_same(load_params(folder / "checkpoint", dtype=None)[1], params, dtype)


def test_arrays_that_flax_splits_are_one_again(tmp_path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 100)
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS, inline=lambda name: True)
    assert b"__msgpack_chunked_array__" in (folder / "checkpoint").read_bytes()
    assert_same(load_params(folder)[1], PARAMS)


def test_the_optimizer_is_never_opened(tmp_path):
    """The helper writes slots that nobody can read; flax itself fails on them."""
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS, inline=lambda name: True)
    data = (folder / "checkpoint").read_bytes()
    assert GARBAGE.data in data
    with pytest.raises(Exception, match="unpack|extra|msgpack|bytes"):
        flax.serialization.msgpack_restore(data)
    assert_same(load_params(folder)[1], PARAMS)


def test_the_latest_step_is_taken(tmp_path):
    other = jax.tree.map(lambda x: 2 * x, PARAMS)
    write_legacy(tmp_path / "checkpoint_900", other)
    write_legacy(tmp_path / "checkpoint_1000", PARAMS)
    write_legacy(tmp_path / "checkpoint_2000.tmp-1234", other)
    assert_same(load_params(tmp_path)[1], PARAMS)
    assert_same(load_params(f"{tmp_path}/checkpoint_900/")[1], other)


@pytest.mark.parametrize("ocdbt", [True, False])
@pytest.mark.parametrize("wrap", [
    lambda params: {"target": params, "state": {"step": np.int32(3), "param_states": params}},
    lambda params: {"params": params},
    lambda params: params,
])  # fmt: skip
def test_orbax(tmp_path, ocdbt, wrap):
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "checkpoint_3" / "state", wrap(half))
    for path in (tmp_path, tmp_path / "checkpoint_3", tmp_path / "checkpoint_3" / "state"):
        config, params = load_params(path, dtype=None)
        assert config == CONFIG
        assert_same(params, half, "bfloat16")


def test_orbax_with_zarr3(tmp_path):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True)) as checkpointer:
        checkpointer.save(tmp_path / "weights", {"params": PARAMS})
    assert_same(load_params(tmp_path / "weights")[1], PARAMS)


def test_what_we_write_orbax_reads(tmp_path):
    checkpoints.save_params(tmp_path / "weights", CONFIG, PARAMS, dtype="bfloat16")
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        restored = checkpointer.restore(tmp_path / "weights" / "params")
    assert_same(restored, PARAMS, "bfloat16")


def test_a_config_of_the_callers_goes_first(tmp_path):
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS)
    silu = dataclasses.replace(CONFIG, mlp_activations=("silu", "linear"))
    assert load_params(folder, config=silu)[0] == silu
    assert load_config(folder) == CONFIG


def test_parameters_that_do_not_fit_are_named(tmp_path):
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS)
    other = dataclasses.replace(CONFIG, num_decoder_layers=3, mlp_dim=16)
    with pytest.raises(ValueError, match="lack decoder/layers_2/") as error:
        load_params(folder, config=other)
    assert "mlp/wi_0/kernel is (8, 12), expected (8, 16)" in str(error.value)
    assert "\n" not in str(error.value)

    extra = {**PARAMS, "novel": {"kernel": np.ones((2, 2), np.float32)}}
    folder = write_legacy(tmp_path / "checkpoint_8", extra)
    with pytest.raises(ValueError, match="have unknown novel/kernel"):
        load_params(folder)

    lacking = {"decoder": PARAMS["decoder"], "encoder": PARAMS["encoder"]}
    folder = write_legacy(tmp_path / "checkpoint_9", lacking)
    with pytest.raises(ValueError, match="is no T5 .* it lacks token_embedder/embedding"):
        load_params(folder)


def damage_index(folder):
    index = folder / "checkpoint"
    index.write_bytes(index.read_bytes()[:-40])


def damage_nothing_left(folder):
    (folder / "checkpoint").write_bytes(b"")


def remove_chunk(folder):
    (folder / "target.decoder.layers_1.mlp.wo.kernel" / "1.0").unlink()


def cut_chunk(folder):
    chunk = folder / "target.decoder.layers_1.mlp.wo.kernel" / "1.0"
    chunk.write_bytes(chunk.read_bytes()[:-9])


def remove_array(folder):
    (folder / "target.decoder.layers_1.mlp.wo.kernel" / ".zarray").unlink()


def rewrite(tree):
    def damage(folder):
        (folder / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(tree))

    return damage


def as_tensorflow(folder):
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')


DAMAGES = {
    damage_index: "index is not msgpack, or is cut short",
    damage_nothing_left: "index is not msgpack, or is cut short",
    remove_chunk: "damaged or incomplete: decoder/layers_1/mlp/wo/kernel can't be read: NOT_FOUND",
    cut_chunk: "damaged or incomplete: decoder/layers_1/mlp/wo/kernel can't be read",
    remove_array: "damaged or incomplete: decoder/layers_1/mlp/wo/kernel can't be read",
    rewrite({"params": {}, "step": 3}): r"no optimizer/target \(it has params, step\)",
    rewrite({"optimizer": {"target": {"a": "b"}}}): "has a as 'b', where an array",
    rewrite(7): "no optimizer/target",
    as_tensorflow: "is a TensorFlow checkpoint; T5X's convert_tf_checkpoint",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_sentence(tmp_path, damage):
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS, chunk=7)
    damage(folder)
    with pytest.raises(ValueError, match=DAMAGES[damage]) as error:
        load_params(folder)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_other_than_floats_is_refused(tmp_path):
    """T5X's version 2 kept bfloat16 as uint16."""
    old = jax.tree.map(lambda x: x.astype(jnp.bfloat16).view(np.uint16), PARAMS)
    folder = write_legacy(tmp_path / "checkpoint_7", old)
    with pytest.raises(ValueError, match="holds other than floats: .* is uint16"):
        load_params(folder)


def test_orbax_of_something_else(tmp_path):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "state", {"w": np.ones(3), "b": np.ones(2)})
    with pytest.raises(ValueError, match=r"no token_embedder/embedding.*\(it has b, w\)"):
        load_params(tmp_path)


LOAD = """
import json, pathlib, re, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from specdec_jax import checkpoints, stored

def peak():
    # Not getrusage, whose peak begins with that of the process which started this one.
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", status)[1])

path = sys.argv[1]
config = checkpoints.load_config(path)
mesh = jax.make_mesh((2, 2), ("data", "model"))
rows = NamedSharding(mesh, PartitionSpec("model"))
rest = NamedSharding(mesh, PartitionSpec())
shapes = checkpoints.expected_params(config)
tree = jax.tree.map(lambda x: rows if x.ndim == 2 and len(sys.argv) > 2 else rest, shapes)
jnp.zeros(3).block_until_ready()
before = peak()
if len(sys.argv) > 2:
    _, params = checkpoints.load_params(path, shardings=tree)
    for name, leaf in stored.flat(params).items():
        assert leaf.sharding == stored.flat(tree)[name], name
    reads, whole = [], np.arange(12.0).reshape(4, 3)
    array = stored.StoredArray((4, 3), whole.dtype, lambda at: reads.append(at) or whole[at])
    assert (array.place("float32", rows) == whole).all()
    assert len(reads) == 2, "two parts, each read once for the two devices that hold it"
else:
    _, params = checkpoints.load_params(path)
size = sum(x.nbytes for x in jax.tree.leaves(params))
took = peak() - before
flat = stored.flat(params).items()
sums = {name: float(np.asarray(leaf, np.float64).sum()) for name, leaf in flat}
print(json.dumps([took, size, sums]))
"""


def load_elsewhere(path, *flags):
    flag = "--xla_force_host_platform_device_count=4"
    environment = {
        **os.environ,
        "XLA_FLAGS": flag,
        "JAX_PLATFORMS": "cpu",
        "MALLOC_MMAP_THRESHOLD_": "1000000",  # or glibc keeps some of what was freed
    }
    root = Path(checkpoints.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), *flags],
        cwd=root, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_each_device_gets_its_part(tmp_path):
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS, inline=lambda n: "encoder" in n)
    _, _, sums = load_elsewhere(folder, "sharded")
    assert sums == {n: float(x.astype(np.float64).sum()) for n, x in flat(PARAMS).items()}


def test_shardings_for_all_or_for_each(tmp_path):
    folder = write_legacy(tmp_path / "checkpoint_7", PARAMS)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert_same(load_params(folder, shardings=here)[1], PARAMS)
    with pytest.raises(ValueError, match="shardings lack decoder/decoder_norm/scale, .*for each"):
        load_params(folder, shardings={"token_embedder": {"embedding": here}})


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="measured as Linux has it")
@pytest.mark.parametrize("kind", ["zarr", "inline", "own"])
def test_the_whole_is_in_memory_once(tmp_path, kind):
    wide = T5Config(
        vocab_size=4096, emb_dim=1024, num_heads=8, head_dim=128, mlp_dim=2048,
        num_encoder_layers=3, num_decoder_layers=3,
    )  # fmt: skip
    params = jax.tree.map(
        lambda s: np.broadcast_to(np.float32(1.5), s.shape), checkpoints.expected_params(wide)
    )
    if kind == "own":
        path = tmp_path / "own"
        checkpoints.save_params(path, wide, params)
    else:
        inline = kind == "inline"
        path = write_legacy(tmp_path / "checkpoint_7", params, inline=lambda name: inline)
    took, size, _ = load_elsewhere(path)
    assert size > 300e6
    assert took < 1.2 * size, f"{took / size:.2f} times its size"


class Bucket(http.server.BaseHTTPRequestHandler):
    """As much of Google Cloud Storage's JSON interface as reading needs."""

    root: Path
    asked: list[str]
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for head and body: two wait for each other

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        _, _, rest = url.path.partition("/storage/v1/b/bucket/o")
        name = urllib.parse.unquote(rest.removeprefix("/"))
        if not rest:
            files = (p for p in self.root.rglob("*") if p.is_file())
            start, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
            names = sorted(str(p.relative_to(self.root)) for p in files)
            names = [name for name in names if start <= name < end]
            self.reply(200, json.dumps({"items": [{"name": n} for n in names]}).encode())
        elif (self.root / name).is_file():
            self.asked.append(name)
            data = (self.root / name).read_bytes()
            if bounds := self.headers.get("Range"):
                first, _, last = bounds.removeprefix("bytes=").partition("-")
                part = data[int(first) : int(last) + 1 if last else None]
                self.reply(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
            else:
                self.reply(200, data)
        else:
            self.reply(404, b"")

    def reply(self, status, data, content_range=None):
        self.send_response(status)
        self.send_header("x-goog-generation", "1")
        self.send_header("Content-Length", str(len(data)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    handler = type("Handler", (Bucket,), {"root": tmp_path, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
        monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:1")  # nobody's credentials
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "nobody")
        yield handler
        server.shutdown()


def test_a_bucket(tmp_path, bucket):
    write_legacy(tmp_path / "models/small/checkpoint_7", PARAMS, form="gcs")
    for path in ("checkpoint_7", "checkpoint_7/checkpoint", ""):
        config, params = load_params(f"gs://bucket/models/small/{path}")
        assert config == CONFIG
        assert_same(params, PARAMS)
    assert not [name for name in bucket.asked if "state" in name]
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "new/checkpoint_8/state", {"target": PARAMS})
    assert_same(load_params("gs://bucket/new")[1], PARAMS)
    with pytest.raises(FileNotFoundError, match="'gs://bucket/none' is no checkpoint: expected"):
        load_params("gs://bucket/none")
