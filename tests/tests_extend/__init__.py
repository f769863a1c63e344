"""Helpers under the names that MindSpeed's unit tests import, for people who bring such tests.

Put this folder and its parent on the path, and both spellings resolve:

    from unit_tests.common import DistributedTest           from commons import ...
    from tests_extend.unit_tests.common import ...          from tests_extend.commons import ...
"""
