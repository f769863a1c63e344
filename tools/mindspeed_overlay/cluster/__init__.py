"""From a wheel to many hosts: targets, package index, bundle, signatures, hosts, site-packages."""
