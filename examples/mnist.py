"""Fashion-MNIST in 40 lines: ciranda run -np 2 examples/mnist.py [folder with its four files]"""

import sys
from pathlib import Path

import torch
from fashion_mnist import FILES, find_data, read_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ciranda.torch as hvd

hvd.init()
folder = find_data(Path(sys.argv[1]) if len(sys.argv) > 1 else None, ranks_meet=True)
train_set = TensorDataset(*read_split(folder, FILES["train_images"], FILES["train_labels"]))
test_set = TensorDataset(*read_split(folder, FILES["test_images"], FILES["test_labels"]))
sampler = hvd.data.DistributedSampler(train_set)
batches = DataLoader(train_set, batch_size=64, sampler=sampler)
test_sampler = hvd.data.DistributedSampler(test_set, uneven=True)  # each image once
test_batches = DataLoader(test_set, batch_size=1000, sampler=test_sampler)

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=hvd.schedules.scaled_lr(0.02), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
schedule = hvd.schedules.warmup(optimizer, steps=len(batches))

for epoch in range(3):
    sampler.set_epoch(epoch)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test_batches)
    accuracy = hvd.metrics.average(right / max(len(test_sampler), 1), count=len(test_sampler))
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: {100 * accuracy:.2f} % of the test images are right", flush=True)
