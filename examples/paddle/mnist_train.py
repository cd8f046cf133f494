"""Train MNIST as Paddle's IPU documentation does: micro-batches of 1, 64 of them a step, fluid.

Run it with the stock Paddle wheel, unchanged:

    python -m pantile.paddle examples/paddle/mnist_train.py
"""

import argparse
import os

import numpy as np
import paddle
import paddle.fluid as fluid
from mnist_data import load_images

paddle.enable_static()
BATCH, STEPS = 1, 64


def build_network() -> tuple:
    """Feeds, prediction and loss of the documented network."""
    image = paddle.static.data("img", [BATCH, 1, 28, 28], "float32")
    label = paddle.static.data("label", [BATCH, 1], "int64")
    first = fluid.nets.simple_img_conv_pool(
        image, num_filters=20, filter_size=5, pool_size=2, pool_stride=2, act="relu"
    )
    second = fluid.nets.simple_img_conv_pool(
        fluid.layers.batch_norm(first),
        num_filters=BATCH,
        filter_size=5,
        pool_size=2,
        pool_stride=2,
        act="relu",
    )
    prediction = fluid.layers.fc(second, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    return image, label, prediction, loss


class ProgressPrinter:
    """Prints every fifth of a compilation."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, progress: int, total: int) -> None:
        if progress != self.last and progress % 20 == 0:
            print(f"Graph compilation: {progress}/{total}")
            self.last = progress


def compile_program(program, feeds, fetches, *, training):
    """The program for the IPU, and what holds its weights."""
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(num_ipus=1, is_training=training, micro_batch_size=BATCH)
    strategy.set_pipelining_config(enable_pipelining=False, batches_per_step=STEPS)
    strategy.set_options({"compilation_progress_logger": ProgressPrinter()})
    print("start compiling model for ipu, it will need some minutes")
    compiled = paddle.static.IpuCompiledProgram(program, ipu_strategy=strategy)
    result = compiled.compile([v.name for v in feeds], [v.name for v in fetches])
    print("finish model compiling!")
    return result, compiled


def steps_of(part: str, limit: int | None):
    """Feeds of 64 samples; what is left over is not used."""
    images, labels = load_images(part)
    count = min(len(images) // STEPS, limit or len(images))
    for step in range(count):
        rows = slice(step * STEPS, (step + 1) * STEPS)
        label = labels[rows].astype("int64").reshape(-1, 1)
        yield step, {"img": images[rows], "label": label}, label.ravel()


def main() -> None:
    """Train, test, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="steps of an epoch (default: all)")
    parser.add_argument("--out", default="model", help="folder of the saved model")
    args = parser.parse_args()
    paddle.seed(0)
    image, label, prediction, loss = build_network()
    program = paddle.static.default_main_program()
    test_program = program.clone(for_test=True)
    paddle.optimizer.Adam(1e-3).minimize(loss)
    executor = paddle.static.Executor(paddle.IPUPlace())
    executor.run(paddle.static.default_startup_program())

    print("start training")
    trainer, compiled = compile_program(program, [image, label], [loss], training=True)
    for _ in range(args.epochs):
        for step, feed, _ in steps_of("train", args.steps):
            (losses,) = executor.run(trainer, feed=feed, fetch_list=[loss])
            if step % 40 == 0:
                print(f"step: {step}, loss: {np.mean(losses)}")
    compiled._backend.weights_to_host()
    print("finish training!")

    print("start verifying")
    tester, _ = compile_program(test_program, [image, label], [prediction], training=False)
    right = total = 0
    for _, feed, labels in steps_of("t10k", args.steps):
        (shares,) = executor.run(tester, feed=feed, fetch_list=[prediction])
        right += int((shares.reshape(-1, 10).argmax(1) == labels).sum())
        total += len(labels)
    print(f"top1 score: {right / total}")
    paddle.static.save_inference_model(
        os.path.join(args.out, "mnist"), [image], [prediction], executor, program=test_program
    )


if __name__ == "__main__":
    main()
