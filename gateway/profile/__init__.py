"""The portrait of a workload, drawn from an access log: what `kvlane profile` tells, as figures, words and charts.

sketch, arrivals, beginnings   what is counted while lines pass, in bounded memory
portrait                       one group of requests: all of them, a tenant's, a model's
findings                       each figure beside the decision that it speaks to, in words
words, charts, page            the same on a terminal, as pictures, as one HTML file
"""
