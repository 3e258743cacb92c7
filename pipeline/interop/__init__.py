"""Other systems' formats: conversion from and to them."""
