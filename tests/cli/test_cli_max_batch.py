"""``remat max-batch``, of one graph and of graphs for several batches."""


def test_the_command(remat):
    remat("export", "zoo:unit-chain{n=17}", "-o", "chain.json")
    done = remat("max-batch", "chain.json", "--memory", "80B", "--batch", "1", "--max-overhead", "30%")
    assert "the largest batch within 80 B at 30.0% over no-remat is 16" in done.out
    assert "2.00 times as many" in done.out
    assert "17 or more is proven impossible" in done.out
    done = remat("max-batch", "chain.json", "--memory", "80B", "--batch", "1", "--max-overhead", "3GB", code=2)
    assert "is not a percentage" in done.err
    done = remat("max-batch", "chain.json", "--memory", "80B", "--batch", "1", "--max-overhead", "0.3", code=2)
    assert "(write 0.3% or 30%, or one-forward)" in done.err
    assert "say it with --batch" in remat("max-batch", "chain.json", "--memory", "80B", code=2).err


def test_the_command_takes_graphs_of_several_batches(remat):
    for batch in (8, 32):
        spec = f"zoo:resnet18{{batch={batch}}}"
        remat("export", spec, "--cost", "roofline:v100", "-o", f"{batch}.json")
    options = ("--memory", "4GB", "--strategy", "ap-greedy")
    done = remat("max-batch", "32.json", "8.json", *options, "--format", "json")
    several = done.json()
    one = remat("max-batch", "32.json", *options, "--format", "json").json()
    assert several["given_batches"] == [8, 32]
    assert one["given_batches"] == [32]
    # The images are fixed memory of one graph and grow with the batch of two.
    assert one["batch"] > several["batch"] > several["batch_without_remat"] > 0
    assert "--batch 8,16,32" in remat("max-batch", "8.json", "32.json", *options, "--batch", "8", code=2).err
    assert "is not a batch" in remat("max-batch", "8.json", "32.json", *options, "--batch", "8,0", code=2).err
    assert "standard input is one graph" in remat("max-batch", "-", "-", *options, code=2).err
