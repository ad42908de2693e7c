from felixlike.tc.comprehension import Comprehension as Comprehension
from felixlike.tc.entry import define as define
from felixlike.tc.options import Options as Options
