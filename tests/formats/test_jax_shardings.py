"""JAX functions with shardings, for eight devices: the modules of `from_jax` have JAX's values.

JAX runs in a child process, as its number of devices is set once.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

_PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
import hlo_run, hlo_run.errors
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))

def step(x, w):
    centred = jax.shard_map(lambda v: v - jax.lax.pmean(v, "data"), mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
    return jnp.tanh(centred @ w), w.sum(0)

jitted = jax.jit(step, in_shardings=(NamedSharding(mesh, P("data", None)), NamedSharding(mesh, P(None, "model"))))
rng = np.random.default_rng(3)
arguments = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((6, 16), (16, 8))]
module = hlo_run.from_jax(jitted, *arguments)
assert module.attrs["num_partitions"] == 8
whole, tiles = (hlo_run.evaluate(module, *arguments, partitioned=partitioned) for partitioned in (False, True))
for made in (hlo_run.run(module, *arguments, platform="Host"), whole, tiles):
    for one, other in zip(made, jitted(*arguments), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
try:
    hlo_run.from_jax(jitted.lower(*arguments).compile())
except hlo_run.errors.UsageError as error:
    assert "compiled for 8 devices is the program of one of them" in str(error)
else:
    raise AssertionError("its parameters are the parts of one device")
"""


def test_a_function_with_shardings_has_the_values_of_jax() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
