"""`python -m gpu_sandbox.engines` compiles all engines that are not in the cache."""

from gpu_sandbox.engines import ENGINES, compile_engines

if __name__ == "__main__":
    compile_engines(ENGINES, lambda line: print(line, flush=True))
