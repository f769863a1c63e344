one
two
2
three
