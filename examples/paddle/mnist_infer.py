"""Classify one image with the model that mnist_train.py saved.

python -m pantile.paddle examples/paddle/mnist_infer.py --model model/mnist --image 0
"""

import argparse

from mnist_data import load_images
from paddle.inference import Config, create_predictor


def main() -> None:
    """Read the model, run it on one test image."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="model/mnist", help="prefix of the saved model")
    parser.add_argument("--image", type=int, default=0, help="number of a test image")
    args = parser.parse_args()
    images, labels = load_images("t10k")

    config = Config(f"{args.model}.pdmodel", f"{args.model}.pdiparams")
    config.enable_ipu(ipu_device_num=1, ipu_micro_batch_size=1)
    predictor = create_predictor(config)
    handle = predictor.get_input_handle(predictor.get_input_names()[0])
    handle.copy_from_cpu(images[args.image : args.image + 1])
    predictor.run()
    (name,) = predictor.get_output_names()
    result = predictor.get_output_handle(name).copy_to_cpu()
    print(f"Inference result of test image {args.image} (a {labels[args.image]}) is:  ", end="")
    print(result.reshape(-1, 10).argmax(1)[0])


if __name__ == "__main__":
    main()
