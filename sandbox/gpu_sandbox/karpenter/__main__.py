"""`python -m gpu_sandbox.karpenter` compiles it, if it is not in the cache."""

from gpu_sandbox.karpenter import compile_karpenter

if __name__ == "__main__":
    compile_karpenter(lambda line: print(line, flush=True))
