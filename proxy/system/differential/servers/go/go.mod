module differential

go 1.19
