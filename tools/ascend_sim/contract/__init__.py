"""What torch_npu promises, release by release, and whether code and kernels keep to it."""
