# ostinato with torch and DeepSpeed from PyPI; torch's wheel brings CUDA.
#
#   docker build -t ostinato .
#   docker run --rm --gpus all -v "$PWD:/work" -w /work ostinato torchrun --nproc-per-node 4 train.py --deepspeed_config ds_config.json
FROM python:3.11-slim-bookworm

# The compiler stays: DeepSpeed builds operators of its own when a run first needs them.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

ARG TORCH=2.13.0
ARG DEEPSPEED=0.19.8
RUN pip install --no-cache-dir torch==${TORCH} && pip install --no-cache-dir deepspeed==${DEEPSPEED} ninja

COPY . /src
RUN pip install --no-cache-dir /src && rm -rf /src && ostinato --version
CMD ["ostinato", "doctor"]
