"""The perceptron of workers/train.py with TensorFlow's ParameterServerStrategy, one process of it.

TF_CONFIG says which: the chief schedules steps on the worker, which reads the variables of the
server and sends it the gradients; the chief answers commands. SGD on synthetic data, as there. A
step is scheduled alone, as in TensorFlow's tutorial, or with others in one function.
"""

from __future__ import annotations

import itertools
import json
import os
import time

import control
import tensorflow as tf

LEARNING_RATE = 1e-6
BATCH = 64
SIZES = (784, 512, 512, 10)


def serve() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    server.join()


class Chief:
    def __init__(self, steps_at_once: int) -> None:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._steps_at_once = steps_at_once
        with strategy.scope():
            weights = [
                (tf.Variable(tf.random.normal((rows, columns), stddev=0.01)), make_bias(columns))
                for rows, columns in itertools.pairwise(SIZES)
            ]
        variables = [each for pair in weights for each in pair]

        def make_data() -> tf.data.Dataset:
            images = tf.random.normal((BATCH, SIZES[0]))
            labels = tf.random.uniform((BATCH,), maxval=SIZES[-1], dtype=tf.int64)
            return tf.data.Dataset.from_tensors((images, labels)).repeat()

        data = self._coordinator.create_per_worker_dataset(make_data)
        self._iterator = iter(data)

        def one_step(images: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                values = images
                for layer, (weight, bias) in enumerate(weights):
                    values = tf.matmul(values, weight) + bias
                    if layer < len(weights) - 1:
                        values = tf.nn.relu(values)
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=values)
                )
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(LEARNING_RATE * gradient)

        @tf.function
        def steps(iterator: object) -> None:
            for _ in tf.range(steps_at_once):
                images, labels = next(iterator)
                one_step(images, labels)

        self._steps = steps

    def train(self, command: control.Command) -> control.Reply:
        """{"steps": n}"""
        began = time.perf_counter()
        for _ in range(max(1, command["steps"] // self._steps_at_once)):
            self._coordinator.schedule(self._steps, args=(self._iterator,))
        self._coordinator.join()
        elapsed_s = time.perf_counter() - began
        done = max(1, command["steps"] // self._steps_at_once) * self._steps_at_once
        return {"images": done * BATCH, "elapsed_s": elapsed_s}


def make_bias(columns: int) -> tf.Variable:
    return tf.Variable(tf.zeros((columns,)))


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--steps-at-once", type=int, default=1)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
        serve()
        return
    control.serve(args, 0, Chief(args.steps_at_once).train)


if __name__ == "__main__":
    main()
