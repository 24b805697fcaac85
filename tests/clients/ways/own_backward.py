# SPDX-License-Identifier: Apache-2.0
"""CoLLiE: an engine of the script's class that has its own backward pass, and names it as an instruction."""

from common import args, data, done, made
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine


class Engine(PipelineEngine):
    def _exec_backward_pass(self, buffer_id):
        super()._exec_backward_pass(buffer_id)

    _INSTRUCTION_MAP = PipelineEngine._INSTRUCTION_MAP | {schedule.BackwardPass: _exec_backward_pass}


model, config = made(), args.deepspeed_config
mpu = model.mpu()
engine = Engine(args=args, model=model, mpu=mpu, config=config, config_class=DeepSpeedConfig(config, mpu))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
