"""The OpenVINO backend: conversion of a model to a graph, and the encoder that runs it."""
