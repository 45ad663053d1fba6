module learnedprefixcache

go 1.19
